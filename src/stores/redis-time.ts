/** Lua for the head of a script: milliseconds of the server's clock, unless a caller brings its own time (tests do). */
export const TIME = `
local function time(given)
  if given ~= '' then return tonumber(given) end
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
`;
