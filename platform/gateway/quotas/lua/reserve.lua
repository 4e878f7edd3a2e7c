-- All or nothing: every limit grants between `need` and `want`, or none grants anything.
-- ARGV, six per limit: kind, limit, rate, want, need, more
--   bucket: cap, tokens per minute, …, …, unused
--   slots: limit, lifetime in ms, …, …, number of the first new slot
--   spend: budget, lifetime in ms, …, …, spent:held by this gateway so far
-- Reply: {granted?, epoch, now, then per limit: granted, left, wait in ms, given out to all gateways}
--   granted? is -1 where the base of a spend counter is missing
local limits, granted = {}, 1
for i = 1, #KEYS - 2 do
  local o, key = 3 + (i - 1) * 6, KEYS[i + 2]
  local limit = {key = key, kind = ARGV[o + 1], cap = tonumber(ARGV[o + 2]), rate = tonumber(ARGV[o + 3]),
                 want = tonumber(ARGV[o + 4]), need = tonumber(ARGV[o + 5]), wait = 0}
  if limit.kind == 'bucket' then
    local bucket = bucket_read(key, limit.cap, limit.rate)
    limit.bucket, limit.total = bucket, bucket.given
    limit.room = math.floor(bucket.level / TOKEN)
    limit.wait = math.max(math.ceil((limit.need * TOKEN - bucket.level) / limit.rate), 0)
  elseif limit.kind == 'slots' then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
    limit.first, limit.total = tonumber(ARGV[o + 6]), redis.call('ZCARD', key)
    limit.room = limit.cap - limit.total
  else
    limit.spent, limit.held = string.match(ARGV[o + 6], '^(%d+):(%d+)$')
    spend_report(key, limit.rate, limit.spent, limit.held)
    limit.total = spend_read(key)
    if not limit.total then granted = -1 end
    limit.room = limit.cap - (limit.total or 0)
  end
  if limit.need > 0 and limit.room < limit.need and granted == 1 then granted = 0 end
  limits[i] = limit
end

local reply = {granted, epoch, now}
for _, limit in ipairs(limits) do
  local grant = 0
  if granted == 1 then grant = math.max(limit.need, math.min(limit.want, limit.room)) end
  if limit.kind == 'bucket' then
    limit.bucket.level = limit.bucket.level - grant * TOKEN
    limit.bucket.given = limit.bucket.given + grant
    bucket_write(limit.bucket)
  elseif grant > 0 and limit.kind == 'slots' then
    for n = limit.first, limit.first + grant - 1 do
      redis.call('ZADD', limit.key, now + limit.rate, string.format('%s/%.0f', incarnation, n))
    end
    redis.call('PEXPIRE', limit.key, limit.rate * 2)
  elseif grant > 0 then
    spend_report(limit.key, limit.rate, limit.spent, limit.held + grant)
  end
  reply[#reply + 1] = grant
  reply[#reply + 1] = limit.room - grant
  reply[#reply + 1] = limit.wait
  reply[#reply + 1] = math.floor((limit.total or -1 - grant) + grant)
end
return answer(reply)
