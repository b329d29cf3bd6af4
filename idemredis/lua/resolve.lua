-- Settle an unknown outcome as done. The token goes: a late owner is told no.
local value, ref, window, memory = unpack(ARGV)
local state, ends, till = read('state', 'ends', 'lease')
if state == 'claim' and alive(till) then return 0 end
if state ~= 'claim' and (state ~= 'unknown' or over(state, ends)) then return 0 end
redis.call('HDEL', key, 'token', 'lease', 'waited', 'stale', 'fades', 'value', 'ref', 'error', 'ends')
redis.call('HSET', key, 'state', 'value', 'done', whole(now()))
redis.call('HSET', key, ref == '' and 'value' or 'ref', ref == '' and value or ref)
keep(window, memory)
return 1
