-- Look the key up and, if it is free, claim it.
local token, lease, fingerprint, policy, waits, waited = unpack(ARGV)
-- lease '0': look only. waits '1': the caller waits if the key is busy.
-- waited '1': the caller has waited, so others may be waiting too.
local state, owner, print, value, ref, text, ends, marked =
  read('state', 'token', 'print', 'value', 'ref', 'error', 'lease', 'waited')
local differs = print and fingerprint ~= '' and print ~= fingerprint

-- What is asked most often comes first: a replay is one read.
if state and state ~= 'claim' then
  if differs then return {'mismatch'} end
  return {state, value, ref, text}
end

-- A claim with our own token: the client asks twice, as the first answer was lost.
if state and owner ~= token and not (policy == 'again' and not alive(ends)) then
  if differs then return {'mismatch'} end
  if not alive(ends) then return {'lost'} end
  -- A mark that cannot be set (out of memory) costs the waiter a poll.
  if waits == '1' and not marked then redis.pcall('HSET', key, 'waited', '1') end
  return {'busy', owner, whole(ends - now())}
end
if lease == '0' then return {'free'} end

-- The first write of a free key is one that Redis refuses when out of memory.
if state then redis.call('DEL', key) end
redis.call('HSET', key, 'state', 'claim', 'token', token, 'lease', whole(now() + lease))
if fingerprint ~= '' then redis.call('HSET', key, 'print', fingerprint) end
if waited == '1' or marked then redis.call('HSET', key, 'waited', '1') end
if policy == 'again' then redis.call('PEXPIRE', key, lease) end
return {'claimed'}
