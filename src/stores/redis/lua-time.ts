/** Begins a script: milliseconds of the server's clock, unless the caller passes a time (as tests do). */
export const LUA_TIME = `
local function time(override)
  if override ~= '' then return tonumber(override) end
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
`;
