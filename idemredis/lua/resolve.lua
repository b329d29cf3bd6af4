-- Settle an unknown outcome as done. The token goes: a late owner is told no.
local value, ref, window = unpack(ARGV)
local state, ends = read('state', 'lease')
if state ~= 'unknown' and not (state == 'claim' and not alive(ends)) then return 0 end
redis.call('HDEL', key, 'token', 'lease', 'waited', 'value', 'ref', 'error')
redis.call('HSET', key, 'state', 'value', 'done', whole(now()))
redis.call('HSET', key, ref == '' and 'value' or 'ref', ref == '' and value or ref)
keep(window)
return 1
