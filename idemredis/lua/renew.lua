-- Move the lease's end, if the claim is still ours and alive.
local token, lease, policy = unpack(ARGV)
local state, owner, ends = read('state', 'token', 'lease')
if state ~= 'claim' or owner ~= token or not alive(ends) then return 0 end
redis.call('HSET', key, 'lease', whole(now + lease))
if policy == 'again' then redis.call('PEXPIRE', key, lease) end
return 1
