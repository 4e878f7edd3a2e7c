-- What this gateway gives back, owes, has spent, and still holds.
-- ARGV, five per limit: kind, limit, rate, one, other
--   bucket: cap, tokens per minute, tokens given back (negative: owed), ms that this gateway granted by itself
--   slots: limit, lifetime in ms, numbers of the slots that are held, numbers of those that are free again
--   spend: budget, lifetime in ms, spent:held, base where that is missing; `fold`: nothing more will come; or ''
-- Reply: {1, epoch, now, then per limit: left, unpaid}
--   left is nil for a spend counter without a base; unpaid are tokens owed that are more than the cap
local reply = {1, epoch, now}
for i = 1, #KEYS - 2 do
  local o, key = 3 + (i - 1) * 5, KEYS[i + 2]
  local kind, cap, rate, one, other = ARGV[o + 1], tonumber(ARGV[o + 2]), tonumber(ARGV[o + 3]), ARGV[o + 4], ARGV[o + 5]
  local left, unpaid = nil, 0
  if kind == 'bucket' then
    local bucket = bucket_read(key, cap, rate)
    local owed = math.max(-one, 0) * TOKEN
    -- Against what was used while the store was away stands what was refilled meanwhile in vain.
    local paid = 0
    if bucket.spilt_at > now - other then paid = math.min(owed, bucket.spilt, other * rate) end
    bucket.spilt = bucket.spilt - paid
    local level = bucket.level + one * TOKEN + paid
    if level < -cap * TOKEN and owed > 0 then
      unpaid = math.min(math.ceil((-cap * TOKEN - level) / TOKEN), -one)
      level = level + unpaid * TOKEN
    end
    bucket.level = math.min(level, cap * TOKEN)
    bucket.spilt = bucket.spilt + level - bucket.level
    bucket_write(bucket)
    left = math.floor(bucket.level / TOKEN)
  elseif kind == 'slots' then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
    for n in string.gmatch(other, '%d+') do redis.call('ZREM', key, incarnation .. '/' .. n) end
    for n in string.gmatch(one, '%d+') do redis.call('ZADD', key, now + rate, incarnation .. '/' .. n) end
    redis.call('PEXPIRE', key, rate * 2)
    left = cap - redis.call('ZCARD', key)
  else
    local spent, held = string.match(one, '^(%d+):(%d+)$')
    spend_report(key, rate, spent, held)
    if other == 'fold' then
      if redis.call('HEXISTS', key, 'base') == 1 then
        redis.call('HDEL', key, incarnation)
        redis.call('HINCRBY', key, 'base', spent)
      end
    elseif other ~= '' then
      redis.call('HSETNX', key, 'base', other)
    end
    local total = spend_read(key)
    left = total and cap - total
  end
  reply[#reply + 1] = left or false
  reply[#reply + 1] = unpaid
end
return answer(reply)
