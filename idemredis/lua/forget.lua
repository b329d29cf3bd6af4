-- Drop what is kept. A claim is dropped once its lease has run out.
local state, ends = read('state', 'lease')
if not state or (state == 'claim' and alive(ends)) then return 0 end
redis.call('DEL', key)
return 1
