-- Checks everything that governs a call and reserves what it may take, or takes nothing.
--
-- ARGV: the epoch the caller decides by, the call's id, its process, day, month, the checks as
-- JSON, and the row for the ledger.
local epoch, id, process, today, this_month, wanted, row = unpack(ARGV)
local current = current_epoch()
if not current then
    return {'lost'}
end
if current ~= epoch then
    return {'stale', current, redis.call('hget', meta, 'rules')}
end

local checks = cjson.decode(wanted)
day, month = day .. today, month .. this_month
local homes = {live = live, day = day, month = month}

local function lines(check)
    return prefix .. 'line:' .. check.counter, prefix .. 'seen:' .. check.counter
end

local function leave()
    for _, check in ipairs(checks) do
        if check.queue_ms > 0 then
            local line, seen = lines(check)
            redis.call('zrem', line, id)
            redis.call('zrem', seen, id)
        end
    end
end

-- How many were here first. Whoever has not asked for a second has left.
local function ahead(check)
    local line, seen = lines(check)
    for _, gone in ipairs(redis.call('zrangebyscore', seen, '-inf', int(millis - 1000))) do
        redis.call('zrem', line, gone)
        redis.call('zrem', seen, gone)
    end
    return redis.call('zrank', line, id) or redis.call('zcard', line)
end

-- Milliseconds until enough of the minute has passed.
local function room(key, from, used, check)
    for past = from or second, second do
        used = used - number(redis.call('hget', key, int(past)))
        if used + check.need <= check.limit then
            return (past + MINUTE) * 1000 - millis
        end
    end
    return MINUTE * 1000
end

local blocked, refused = {}, false
local taken, since = {}, {}
for index, check in ipairs(checks) do
    local used, retry = 0, 0
    local key, from
    if check.window == 'minute' then
        key = prefix .. 'minute:' .. check.counter
        used, from = minute(key)
    elseif check.window == 'budget' then
        local found = redis.call('hmget', budgets, check.counter .. ':spent', check.counter .. ':held')
        used = number(found[1]) + number(found[2])
    else
        used = number(redis.call('hget', homes[check.window], check.counter))
    end
    taken[index], since[index] = used, from
    local others = 0
    if check.queue_ms > 0 then
        others = ahead(check)
    end
    if used + check.need * (1 + others) > check.limit then
        if key then
            retry = room(key, from, used, check)
        end
        -- Waiting is of use where room may come in time, or nobody knows when it comes.
        local waits = check.wait_ms > 0 and retry <= check.wait_ms
            and (check.window == 'minute' or check.window == 'live')
        refused = refused or not waits
        blocked[#blocked + 1] = {index - 1, int(used), int(retry), waits and 1 or 0}
    end
end

if #blocked > 0 then
    if refused then
        leave()
        return {'refused', blocked}
    end
    for _, one in ipairs(blocked) do
        local line, seen = lines(checks[one[1] + 1])
        redis.call('zadd', line, 'nx', int(millis), id)
        redis.call('zadd', seen, int(millis), id)
        redis.call('expire', line, 120)
        redis.call('expire', seen, 120)
    end
    return {'wait', blocked}
end

leave()
local low, remaining = {}, -1
for index, check in ipairs(checks) do
    local after = taken[index] + check.need
    local home = homes[check.window]
    if check.window == 'minute' then
        local key = prefix .. 'minute:' .. check.counter
        if not since[index] then
            redis.call('hset', key, 'from', int(second))
        end
        redis.call('hincrby', key, 'sum', int(check.need))
        -- The first of a second sees to it that the counter stays for as long as it holds something.
        if redis.call('hincrby', key, int(second), int(check.need)) == check.need then
            redis.call('expire', key, MINUTE + 1)
        end
    elseif check.window == 'budget' then
        redis.call('hincrby', budgets, check.counter .. ':held', int(check.need))
        remaining = check.limit - after
        home = budgets
    else
        redis.call('hincrby', home, check.counter, int(check.need))
        -- The first that is taken of a window sees to it that the window ends some day.
        if taken[index] == 0 and check.window ~= 'live' then
            redis.call('expire', home, check.window == 'day' and 172800 or 2764800)
        end
    end
    -- Told once for each window.
    if check.window == 'day' or check.window == 'month' or check.window == 'budget' then
        if after * 5 >= check.limit * 4 and redis.call('hsetnx', home, check.counter .. ':low', 1) == 1 then
            low[#low + 1] = {index - 1, int(after)}
        end
    end
end
redis.call('hset', held, id, table.concat({process, int(second), today, this_month, wanted, row}, '\n'))
return {'admitted', int(remaining), low}
