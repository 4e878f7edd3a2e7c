-- Put before every script. A call is (gateway incarnation, sequence number): one that was cut off is sent
-- again with its own number, is executed once at most, and is answered as the first time.
-- KEYS: epoch, this gateway's last call, limits… ARGV: new epoch, sequence number, incarnation, …
local KEEP_MS = 3600000
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local epoch = redis.call('GET', KEYS[1]) or ARGV[1]
redis.call('SET', KEYS[1], epoch, 'PX', KEEP_MS)
local sequence, incarnation = tonumber(ARGV[2]), ARGV[3]
do
  local last = redis.call('HMGET', KEYS[2], 'sequence', 'reply')
  local reached = tonumber(last[1] or '0')
  if sequence == reached then return cmsgpack.unpack(last[2]) end
  if sequence < reached then return {-2, epoch, now} end -- overtaken: executed long ago
end

local function answer(reply)
  redis.call('HSET', KEYS[2], 'sequence', ARGV[2], 'reply', cmsgpack.pack(reply))
  redis.call('PEXPIRE', KEYS[2], KEEP_MS)
  return reply
end

-- Tokens are kept in sixty-thousandths: a millisecond's refill is then a whole number, and nothing is rounded.
local TOKEN = 60000

-- A bucket now. `given`: tokens given out lately by all gateways (1/e of it after 10 s). `spilt`: what was
-- refilled in vain, because the bucket was full, while nobody was heard for a second or more; soon forgotten.
local function bucket_read(key, cap, per_minute)
  local kept = redis.call('HMGET', key, 'level', 'at', 'given', 'spilt', 'spilt_at')
  -- The clock may step backwards: what was refilled is not refilled again, for at most one filling.
  local at = math.min(tonumber(kept[2] or now), now + math.ceil(cap * TOKEN / per_minute))
  local passed = math.max(now - at, 0)
  local level = tonumber(kept[1] or cap * TOKEN) + passed * per_minute
  local bucket = {key = key, cap = cap, per_minute = per_minute, at = math.max(at, now),
                  level = math.min(level, cap * TOKEN),
                  given = tonumber(kept[3] or '0') * math.exp(-passed / 10000),
                  spilt = tonumber(kept[4] or '0'), spilt_at = tonumber(kept[5] or '0')}
  bucket.spilt = now - bucket.spilt_at > 5000 and 0 or bucket.spilt + level - bucket.level
  if not kept[1] then bucket.spilt, bucket.spilt_at = 1e15, now end -- expired: it was full for long
  if passed >= 1000 then bucket.spilt, bucket.spilt_at = level - bucket.level, now end
  return bucket
end

-- A full bucket need not be kept: it expires.
local function bucket_write(bucket)
  redis.call('HSET', bucket.key, 'level', string.format('%.0f', bucket.level),
             'at', string.format('%.0f', bucket.at),
             'given', string.format('%.3f', bucket.given), 'spilt', string.format('%.0f', bucket.spilt),
             'spilt_at', bucket.spilt_at)
  redis.call('PEXPIRE', bucket.key, math.max(60000, math.ceil(2 * bucket.cap * TOKEN / bucket.per_minute)))
end

-- What a period's counter holds: micro-dollars spent and held by all gateways; nil while its base is missing.
-- Of a gateway that was not heard for an hour both count as spent from then on.
local function spend_read(key)
  local fields, total, base = redis.call('HGETALL', key), 0, nil
  for i = 1, #fields, 2 do
    if fields[i] == 'base' then base = tonumber(fields[i + 1]) end
  end
  for i = 1, #fields, 2 do
    local spent, held, heard = string.match(fields[i + 1], '^(%d+):(%d+):(%d+)$')
    if spent then
      total = total + spent + held
      if base and now - heard > KEEP_MS then
        redis.call('HDEL', key, fields[i])
        redis.call('HINCRBY', key, 'base', string.format('%.0f', spent + held))
      end
    end
  end
  return base and base + total
end

-- Absolute figures, so that what the store forgot comes back with the next report.
local function spend_report(key, keep_ms, spent, held)
  redis.call('HSET', key, incarnation, string.format('%.0f:%.0f:%.0f', spent, held, now))
  redis.call('PEXPIRE', key, keep_ms)
end
