-- Put before every script. A call is (gateway incarnation, sequence number): one that was cut off is sent
-- again with its own number, is executed once at most, and is answered as the first time.
-- KEYS: epoch, this gateway's last call, limits… ARGV: new epoch, sequence number, incarnation, …
local KEEP_MS = 3600000 -- a call that may be sent again
local EPOCH_KEEP_MS = 40 * 86400000 -- longer than any counter: one that ends before would look like lost data
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local epoch = redis.call('GET', KEYS[1]) or ARGV[1]
redis.call('SET', KEYS[1], epoch, 'PX', EPOCH_KEEP_MS)
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

-- A gateway that was not heard for so long is silent: longer than it spends without the store (10 minutes)
-- and any request runs (10 more), so that what it spent is billed.
local SILENT_MS = 3600000
local MOST_ENDED = 256 -- silent gateways whose figures are kept apart

-- What a period's counter holds: micro-dollars spent and held by all gateways; nil while its base is missing.
-- Then, as name:told, one that is silent and holds money: the ledger knows what became of that. Its figures
-- stay under its name, for the case that it is heard again.
local function spend_read(key)
  local fields, total, ended, base, silent = redis.call('HGETALL', key), 0, {}, nil, false
  for i = 1, #fields, 2 do
    local spent, held, told, heard = string.match(fields[i + 1], '^(%d+):(%d+):(%d+):(%d+)$')
    if not spent then
      base = tonumber(fields[i + 1])
    else
      total = total + spent + held
      if now - heard > SILENT_MS then
        if tonumber(held) > 0 then silent = fields[i] .. ':' .. told
        else ended[#ended + 1] = {name = fields[i], spent = spent} end
      end
    end
  end
  for i = MOST_ENDED + 1, base and #ended or 0 do
    redis.call('HDEL', key, ended[i].name)
    redis.call('HINCRBY', key, 'base', ended[i].spent)
  end
  return base and base + total, silent
end

-- Absolute figures, so that what the store forgot comes back with the next report; `told` is the gateway's time.
local function spend_write(key, name, spent, held, told, heard)
  redis.call('HSET', key, name, string.format('%.0f:%.0f:%.0f:%.0f', spent, held, told, heard))
end

local function spend_report(key, keep_ms, report, more)
  local spent, held, told = string.match(report, '^(%d+):(%d+):(%d+)$')
  spend_write(key, incarnation, spent, held + more, told, now)
  redis.call('PEXPIRE', key, keep_ms)
end

-- What a silent gateway held is what it spent since by the ledger, unless it was heard in the meantime.
local function spend_ended(key, name, told, spent_since)
  local spent, _, before, heard = string.match(redis.call('HGET', key, name) or '', '^(%d+):(%d+):(%d+):(%d+)$')
  if before == told and now - heard > SILENT_MS then
    spend_write(key, name, spent + spent_since, 0, told, heard)
  end
end
