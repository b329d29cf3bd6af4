-- Drop what is kept or remembered. A claim is dropped once its lease has run out.
local state, ends, till = read('state', 'ends', 'lease')
if not state or (state == 'claim' and alive(till)) then return 0 end
redis.call('DEL', key)
return over(state, ends) and 0 or 1
