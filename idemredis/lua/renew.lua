-- Move the lease's end, if the claim is still ours and alive.
local token, lease, policy = unpack(ARGV)
local state, owner, till = read('state', 'token', 'lease')
if state ~= 'claim' or owner ~= token or not alive(till) then return 0 end
-- Out of memory, Redis refuses a script's first write if it may take memory, and
-- none after that. A lease must not be lost for that: the first write frees some.
redis.call('HDEL', key, 'lease')
redis.call('HSET', key, 'lease', whole(now() + lease))
if policy == 'again' then redis.call('PEXPIRE', key, lease) end
return 1
