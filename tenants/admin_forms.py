"""Forms of this app's admin pages. They check; services write."""

from django import forms
from django.core.validators import MinValueValidator
from unfold.widgets import (
    UnfoldAdminDecimalFieldWidget,
    UnfoldAdminIntegerFieldWidget,
    UnfoldAdminTextareaWidget,
    UnfoldAdminTextInputWidget,
)

from tenants.models import MAX_WEIGHT, MIN_WEIGHT, ApiKey, Tenant


def tenant_open(tenant: Tenant) -> Tenant:
    """The same. Raises ValidationError when it is closed."""
    if tenant.status == Tenant.Status.CLOSED:
        raise forms.ValidationError("This tenant is closed for good.")
    return tenant


class ApiKeyForm(forms.ModelForm):  # type: ignore[type-arg]  # not generic at run time
    """What a new key may do. The key itself is made by the service."""

    allowed_models = forms.CharField(
        required=False,
        widget=UnfoldAdminTextareaWidget({"rows": 2}),
        help_text="Model names separated by spaces. Empty: every model.",
    )

    class Meta:
        model = ApiKey
        fields = ("tenant", "name", "allowed_models", "expires_at", "max_open_requests")

    def clean_allowed_models(self) -> list[str] | None:
        return self.cleaned_data["allowed_models"].split() or None

    def clean_tenant(self) -> Tenant:
        return tenant_open(self.cleaned_data["tenant"])


class CountField(forms.IntegerField):
    """A bound of at least 1, or none."""

    def __init__(self, help_text: str) -> None:
        super().__init__(
            required=False,
            validators=[MinValueValidator(1)],
            widget=UnfoldAdminIntegerFieldWidget,
            help_text=help_text,
        )


class TenantSettingsForm(forms.Form):
    zero_retention = forms.BooleanField(required=False, help_text="Keep no answer, not even for a replay.")
    max_output_tokens = CountField("Of one request. Empty: no bound.")
    continues_streams = forms.BooleanField(
        required=False, help_text="Where a replica is lost, another one goes on with its streams."
    )


class TenantWeightForm(forms.Form):
    weight = forms.DecimalField(
        min_value=MIN_WEIGHT,
        max_value=MAX_WEIGHT,
        max_digits=5,
        decimal_places=2,
        widget=UnfoldAdminDecimalFieldWidget,
        help_text="0.01 to 100. While there is not enough for all, twice the weight is twice the share.",
    )


class TenantConsentsForm(forms.Form):
    accepts_smaller_model = forms.BooleanField(
        required=False, help_text="Rather an answer of the model's smaller one than a refusal."
    )
    accepts_batch = forms.BooleanField(required=False, help_text="Rather a batch job than a refusal.")


class TenantCloseForm(forms.Form):
    reason = forms.CharField(
        max_length=200,
        widget=UnfoldAdminTextInputWidget,
        help_text="Closing is for good: keys are revoked, and what is kept of their text becomes unreadable.",
    )


class KeyLimitForm(forms.Form):
    max_open_requests = CountField("Requests served at a time. Empty: no bound of its own.")
