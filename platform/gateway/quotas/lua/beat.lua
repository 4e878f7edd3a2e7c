-- Which gateways live, and since when this store has its data.
-- KEYS: gateways, birth. ARGV: incarnation, its time to live in ms, a name for the birth.
-- Reply: {gateways, birth, ms since then}
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[1])
local birth = redis.call('GET', KEYS[2])
if not birth then
  birth = now .. ':' .. ARGV[3]
  redis.call('SET', KEYS[2], birth)
end
return {redis.call('ZCARD', KEYS[1]), birth, now - tonumber(string.match(birth, '^%d+'))}
