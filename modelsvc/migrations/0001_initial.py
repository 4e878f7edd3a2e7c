import django.core.validators
import django.db.models.deletion
import tenants.ids
from django.db import migrations, models


class Migration(migrations.Migration):

    initial = True

    dependencies = [
    ]

    operations = [
        migrations.CreateModel(
            name='Model',
            fields=[
                ('id', models.UUIDField(default=tenants.ids.uuid7_now, editable=False, primary_key=True, serialize=False)),
                ('slug', models.CharField(max_length=200, unique=True, validators=[django.core.validators.RegexValidator('^[A-Za-z0-9][A-Za-z0-9._/:-]*\\Z', "A model's slug consists of letters, digits and . _ / : - and begins with a letter or a digit.")])),
                ('name', models.CharField(max_length=200)),
                ('owned_by', models.CharField(max_length=200)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ('slug',),
            },
        ),
        migrations.CreateModel(
            name='ModelVersion',
            fields=[
                ('id', models.UUIDField(default=tenants.ids.uuid7_now, editable=False, primary_key=True, serialize=False)),
                ('digest', models.CharField(max_length=64, unique=True)),
                ('max_context_tokens', models.PositiveIntegerField()),
                ('state', models.CharField(choices=[('ready', 'Ready'), ('retired', 'Retired')], default='ready', max_length=16)),
                ('manifest', models.JSONField()),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ('-created_at',),
            },
        ),
        migrations.CreateModel(
            name='ModelRoute',
            fields=[
                ('model', models.OneToOneField(on_delete=django.db.models.deletion.PROTECT, primary_key=True, related_name='route', serialize=False, to='modelsvc.model')),
                ('max_output_tokens', models.PositiveIntegerField(blank=True, help_text='Of one request. Empty: no bound.', null=True, validators=[django.core.validators.MinValueValidator(1)])),
                ('revision', models.PositiveBigIntegerField()),
                ('updated_at', models.DateTimeField(auto_now=True)),
            ],
            options={
                'ordering': ('model__slug',),
            },
        ),
        migrations.AddConstraint(
            model_name='model',
            constraint=models.CheckConstraint(condition=models.Q(('slug__regex', '^[A-Za-z0-9][A-Za-z0-9._/:-]*\\Z')), name='model_slug_plain'),
        ),
        migrations.AddField(
            model_name='modelversion',
            name='model',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='versions', to='modelsvc.model'),
        ),
        migrations.AddField(
            model_name='modelroute',
            name='version',
            field=models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='routes', to='modelsvc.modelversion'),
        ),
        migrations.AddConstraint(
            model_name='modelversion',
            constraint=models.CheckConstraint(condition=models.Q(('digest__regex', '^[0-9a-f]{64}\\Z')), name='version_digest_sha256'),
        ),
        migrations.AddConstraint(
            model_name='modelversion',
            constraint=models.CheckConstraint(condition=models.Q(('max_context_tokens__gt', 0)), name='version_context_positive'),
        ),
        migrations.AddConstraint(
            model_name='modelversion',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ('ready', 'retired'))), name='version_state_known'),
        ),
        migrations.AddConstraint(
            model_name='modelversion',
            constraint=models.UniqueConstraint(fields=('id', 'model'), name='version_of_model'),
        ),
        migrations.AddConstraint(
            model_name='modelroute',
            constraint=models.CheckConstraint(condition=models.Q(('revision__gt', 0)), name='route_revision_positive'),
        ),
        migrations.AddConstraint(
            model_name='modelroute',
            constraint=models.CheckConstraint(condition=models.Q(('max_output_tokens__gt', 0)), name='route_output_positive'),
        ),
    ]
