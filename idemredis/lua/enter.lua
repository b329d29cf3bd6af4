-- Look the key up and, if it is free, claim it.
local token, lease, fingerprint, policy, waits = unpack(ARGV)
-- lease '0': look only. waits '1': the caller waits if the key is busy.
local state, owner, print, value, ref, text, done, ends, till, marked =
  read('state', 'token', 'print', 'value', 'ref', 'error', 'done', 'ends', 'lease', 'waited')
local differs = print and fingerprint ~= '' and print ~= fingerprint
local claim = state == 'claim'

-- What is asked most often comes first: a replay is one read.
if state and not claim and not over(state, ends) then
  if differs then return {'mismatch'} end
  return {state, value, ref, text}
end

-- A claim with our own token: the client asks twice, as the first answer was lost.
if claim and owner ~= token and not (policy == 'again' and not alive(till)) then
  if differs then return {'mismatch'} end
  if not alive(till) then return {'lost'} end
  -- A mark that cannot be set (out of memory) costs the waiter a poll.
  if waits == '1' and not marked then redis.pcall('HSET', key, 'waited', '1') end
  return {'busy', owner, whole(till - now())}
end
if lease == '0' then return {'free'} end

-- A stale key stays stale until it has a new result: the claim remembers.
local stale, fades = done, nil
if claim then
  stale, fades = read('stale', 'fades')
elseif state then
  fades = redis.call('PEXPIRETIME', key)
end
-- The first write of a free key is one that Redis refuses when out of memory.
if state then redis.call('DEL', key) end
redis.call('HSET', key, 'state', 'claim', 'token', token, 'lease', whole(now() + lease))
if fingerprint ~= '' then redis.call('HSET', key, 'print', fingerprint) end
if policy == 'again' then redis.call('PEXPIRE', key, lease) end
if not stale then return {'claimed'} end
redis.call('HSET', key, 'stale', stale, 'fades', fades)
return {'claimed', whole(now() - stale)}
