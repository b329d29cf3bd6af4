-- Look the key up and, if it is free, claim it.
local token, lease, print, policy, waits, waited = unpack(ARGV)
-- lease '0': look only. waits '1': the caller waits if the key is busy.
-- waited '1': the caller has waited, so others may be waiting too.
local state, owner, ends, known, marked = read('state', 'token', 'lease', 'print', 'waited')

if state == 'claim' then
  -- Our own token: the client sent the claim twice, as the first answer was lost.
  if owner == token or (policy == 'again' and not alive(ends)) then state = false end
  if marked then waited = '1' end
end
if state and known and print ~= '' and known ~= print then return {'mismatch'} end
if state == 'claim' then
  if not alive(ends) then return {'lost'} end
  -- A mark that cannot be set (out of memory) costs the waiter a poll.
  if waits == '1' and not marked then redis.pcall('HSET', key, 'waited', '1') end
  return {'busy', owner, whole(ends - now)}
end
if state then return {state, read('value', 'ref', 'error')} end
if lease == '0' then return {'free'} end

-- The first write of a free key is one that Redis refuses when out of memory.
if owner then redis.call('DEL', key) end
redis.call('HSET', key, 'state', 'claim', 'token', token, 'lease', whole(now + lease))
if print ~= '' then redis.call('HSET', key, 'print', print) end
if waited == '1' then redis.call('HSET', key, 'waited', '1') end
if policy == 'again' then redis.call('PEXPIRE', key, lease) end
return {'claimed'}
