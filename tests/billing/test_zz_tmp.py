import asyncio, time, importlib.util, statistics
import psycopg
def load(path,name):
    spec=importlib.util.spec_from_file_location(name,path); m=importlib.util.module_from_spec(spec); spec.loader.exec_module(m); return m
async def test_speed(shop):
    import billing.ledger as new, billing.pricing as pr
    src=open('/tmp/ledger_old.py').read().replace('billable = billable_tokens(record, prompt_billed=prompt_billed)','billable = billable_tokens(record, __import__("billing.pricing").pricing.Billed(prompt_billed,0))')
    open('/tmp/ledger_old2.py','w').write(src)
    old=load('/tmp/ledger_old2.py','oldledger')
    n=0
    async with await psycopg.AsyncConnection.connect(shop.database.gateway_url, autocommit=True) as conn:
        res={'old':[], 'new':[]}
        for rnd in range(12):
            for name,m in (('old',old),('new',new)) if rnd%2 else (('new',new),('old',old)):
                recs=[shop.usage(n+i) for i in range(500)]; n+=500
                t=time.perf_counter(); c=time.process_time()
                await m.usage_record(conn,recs)
                res[name].append(((time.perf_counter()-t)/500*1e6,(time.process_time()-c)/500*1e6))
        for k,v in res.items(): print(k,'wall us/record median',statistics.median(x[0] for x in v),'min',min(x[0] for x in v),'cpu median',statistics.median(x[1] for x in v))
        recs=[shop.usage(n+i,attempt=2) for i in range(500)]
        t=time.perf_counter(); await new.usage_record(conn,recs); print('attempt 2 us/record',(time.perf_counter()-t)/500*1e6)
