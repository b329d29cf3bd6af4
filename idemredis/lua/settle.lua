-- Turn our claim into a result, or give it up, if it is still ours and alive.
local token, to, window, memory, value, ref, text, channel, message = unpack(ARGV)
-- to: the result's state; 'free': the effect failed; 'never': it was not
-- entered, which is true however late it is said.
local state, owner, till, waited, stale, fades = read('state', 'token', 'lease', 'waited', 'stale', 'fades')
if owner ~= token then return 0 end
if state ~= 'claim' then return 1 end -- sent twice, as the first answer was lost
if to ~= 'never' and not alive(till) then return 0 end

if to == 'free' or to == 'never' then
  redis.call('DEL', key)
  if stale then
    redis.call('HSET', key, 'state', 'stale', 'done', stale)
    redis.call('PEXPIREAT', key, fades)
  end
else
  -- As in renew.lua: what has happened is recorded out of memory too.
  redis.call('HDEL', key, 'lease', 'waited', 'stale', 'fades')
  redis.call('HSET', key, 'state', to, 'done', whole(now()))
  redis.call('HSET', key, ref == '' and 'value' or 'ref', ref == '' and value or ref)
  if text ~= '' then redis.call('HSET', key, 'error', text) end
  keep(window, memory)
end
-- Nothing is rolled back here: a message that cannot be sent must not undo the answer.
if waited then redis.pcall('PUBLISH', channel, message) end
return 1
