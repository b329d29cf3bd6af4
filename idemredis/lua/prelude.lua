local key = KEYS[1]
local clock -- Redis's, in ms; it stands still while a script runs
local function now()
  if not clock then
    local t = redis.call('TIME')
    clock = t[1] * 1000 + math.floor(t[2] / 1000)
  end
  return clock
end
local function whole(n) return string.format('%.0f', n) end
local function read(...) return unpack(redis.call('HMGET', key, ...)) end
-- A claim is alive until the very millisecond in which its lease ends.
local function alive(lease) return now() < (tonumber(lease or 0) or 0) end
-- A result whose window has ended may be remembered for a while as stale.
local function over(state, ends) return state == 'stale' or (ends and now() >= tonumber(ends)) end
-- Keep a result for the window ('': without end), and remember it a while longer.
local function keep(window, memory)
  if window == '' then
    redis.call('PERSIST', key)
  elseif memory == '0' then
    redis.call('PEXPIRE', key, window)
  else
    redis.call('HSET', key, 'ends', whole(now() + window))
    redis.call('PEXPIRE', key, whole(window + memory))
  end
end
