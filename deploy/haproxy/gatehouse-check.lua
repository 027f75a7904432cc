-- Asks gatehouse whether HAProxy (2.6 or newer) may pass a request on, and as whom. See docs/forward-auth.md.
--
--   http-request lua.gatehouse-check <address of the listen section> <name in gatehouse's certificate>
--   http-request deny deny_status 503 unless { var(txn.gatehouse_allowed) -m bool }
--
-- The second line belongs to the first: HAProxy goes on after an error in Lua, and only the last line below allows.

-- Copied from the response to the request. Change them together with `headers` in gatehouse's settings.
local IDENTITY = {
  "x-forwarded-user", "x-forwarded-client-id", "x-forwarded-scope", "x-forwarded-preferred-username", "x-request-id",
}
-- Copied from a refusal to the client.
local FORWARDED_ERROR_HEADERS = {
  "www-authenticate", "content-type", "x-request-id", "retry-after", "ratelimit", "ratelimit-policy", "dpop-nonce",
}
-- Copied from the client's request.
local CREDENTIALS = { "authorization", "dpop", "origin", "access-control-request-method" }
-- The listen section has the timeouts for gatehouse; this one is longer.
local TIMEOUT_MS = 10000

local function first(headers, name)
  local values = headers and headers[name]
  return values and values[0]
end

local function refuse(txn, status, headers, body)
  local reply = txn:reply({ status = status, body = body })
  reply:add_header("cache-control", "no-store")
  for _, name in ipairs(FORWARDED_ERROR_HEADERS) do
    local value = first(headers, name)
    if value then reply:add_header(name, value) end
  end
  txn:done(reply)
end

core.register_action("gatehouse-check", { "http-req" }, function(txn, address, name)
  local check_headers = {
    ["host"] = { name },
    ["x-original-method"] = { txn.sf:method() },
    ["x-original-uri"] = { txn.sf:pathq() },
    ["x-forwarded-host"] = { txn.sf:req_hdr("host") },
    ["x-forwarded-proto"] = { txn.sf:ssl_fc() == "1" and "https" or "http" },
    ["x-forwarded-for"] = { txn.sf:src() },
  }
  local sent = txn.http:req_get_headers()
  for _, header in ipairs(CREDENTIALS) do
    -- All fields of a name: gatehouse refuses two.
    local values = sent[header]
    if values then
      check_headers[header] = {}
      for at = 0, #values do check_headers[header][at + 1] = values[at] end
    end
  end

  -- The host of the URL is not used, because `dst` is where the client connects.
  local response = core.httpclient():get({
    url = "http://127.0.0.1/authsvc/check", dst = address, headers = check_headers, timeout = TIMEOUT_MS,
  })
  local status = response and response.status
  if status == 401 or status == 403 or status == 429 then
    return refuse(txn, status, response.headers, response.body)
  end
  if status ~= 200 then
    return refuse(txn, 503, { ["retry-after"] = { [0] = "1" } }, "")
  end

  for _, header in ipairs(IDENTITY) do
    local value = first(response.headers, header)
    txn.http:req_del_header(header)
    if value and value ~= "" then txn.http:req_set_header(header, value) end
  end
  txn:set_var("txn.gatehouse_allowed", true)
end, 2)
