-- The load of bench/proxy.ts, run by wrk with one thread.
--
-- Tokens are used in rotation. The server's CPU time is read here, between two requests, so that the measured window begins
-- after all handshakes and ends before the first connection is closed. Each line of the snapshots file is:
-- nanoseconds, requests sent so far, clock ticks of CPU time of the server's processes.
--
--   wrk ... -s load.lua URL -- key=value ...
local ffi = require('ffi')
ffi.cdef [[
  typedef struct { long s; long ns; } bench_time;
  int clock_gettime(int clock, bench_time *out);
]]
local MONOTONIC = 1
local moment = ffi.new('bench_time')
local function now()
  ffi.C.clock_gettime(MONOTONIC, moment)
  return tonumber(moment.s) * 1e9 + tonumber(moment.ns)
end

-- Fields 14 and 15 of /proc/<pid>/stat, counted after the name, which may contain spaces and parentheses.
local function ticks(pids)
  local sum = 0
  for _, pid in ipairs(pids) do
    local file = io.open('/proc/' .. pid .. '/stat')
    if file then
      local rest = file:read('*a'):match('.*%) (.*)')
      file:close()
      local at = 0
      for field in rest:gmatch('%S+') do
        at = at + 1
        if at == 12 or at == 13 then sum = sum + tonumber(field) end
        if at == 13 then break end
      end
    end
  end
  return sum
end

local EVERY = 250e6
local warm, cold, sent, started, due, snapshots, pids = {}, {}, 0, nil, nil, nil, {}
local warmNanoseconds, think = 0, 0
local coldFrom, over = nil, false
local first, measuring = nil, false

local function lines(name)
  local all = {}
  for line in io.lines(name) do all[#all + 1] = line end
  return all
end

function init(args)
  local options = {}
  for _, word in ipairs(args) do
    local key, value = word:match('^(%w+)=(.*)$')
    if key then options[key] = value end
  end
  for pid in options.pids:gmatch('%d+') do pids[#pids + 1] = pid end
  warmNanoseconds = tonumber(options.warm) * 1e9
  think = tonumber(options.think or '0')
  -- Every connection has sent it before the measured window begins.
  if options.first then first = wrk.format('GET', options.first, { Host = options.host }) end
  snapshots = io.open(options.snapshots, 'w')
  snapshots:setvbuf('line')
  local body = options.body and string.rep('x', tonumber(options.body)) or nil
  local function format_request(token)
    local headers = { Host = options.host, Authorization = 'Bearer ' .. token, ['User-Agent'] = 'bench', Accept = '*/*' }
    if body then headers['Content-Type'] = 'application/octet-stream' end
    return wrk.format(options.method, options.path, headers, body)
  end
  for _, token in ipairs(lines(options.tokens)) do warm[#warm + 1] = format_request(token) end
  if options.cold then
    for _, token in ipairs(lines(options.cold)) do cold[#cold + 1] = format_request(token) end
  end
end

local function write_snapshot(at)
  measuring = true
  snapshots:write(string.format('%.0f %d %d\n', at, sent, ticks(pids)))
  due = at + EVERY
end

function request()
  sent = sent + 1
  -- The clock is read every 16 requests, or every time if think time makes requests rare.
  if not over and (think > 0 or sent % 16 == 0) then
    local at = now()
    if started == nil then
      started = at
      due = at + warmNanoseconds
    elseif at >= due then
      if coldFrom == nil and #cold > 0 then coldFrom = sent end
      write_snapshot(at)
    end
  end
  if coldFrom and not over then
    local token = cold[sent - coldFrom + 1]
    if token then return token end
    -- All cold tokens have been used: later requests are not measured.
    write_snapshot(now())
    over = true
  end
  if first and not measuring and sent % 8 == 0 then return first end
  return warm[sent % #warm + 1]
end

if os.getenv('BENCH_THINK') then
  function delay()
    -- Uniformly around the mean, so that connections do not send in lockstep.
    return math.random(0, 2 * think)
  end
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '\n{"requests":%d,"p50":%d,"p99":%d,"connect":%d,"read":%d,"write":%d,"status":%d,"timeout":%d}\n',
    summary.requests, latency:percentile(50), latency:percentile(99),
    errors.connect, errors.read, errors.write, errors.status, errors.timeout))
end
