-- What the scripts share. The keys of a tenant lie in one slot of a cluster, because all of them
-- have its name in braces; their prefix is given once and the rest is put together here.
local prefix = KEYS[1]
local meta, held, budgets = prefix .. 'meta', prefix .. 'held', prefix .. 'budgets'
local live, day, month = prefix .. 'live', prefix .. 'day:', prefix .. 'month:'

-- Which life of Redis this is: it is another one after every restart, and once a replica took over.
-- Asked in here and not by the caller, who may speak to another server by the time that this runs.
-- Empty where Redis does not tell.
local told = redis.pcall('info', 'replication')
local life = type(told) == 'string' and string.match(told, 'master_replid:(%w+)') or ''

-- The epoch, if there is one of this life. What comes from a file or a replica may be behind, so it
-- is as good as lost, whatever it says.
local function current_epoch()
    local found = redis.call('hmget', meta, 'epoch', 'life')
    return (found[2] or '') == life and found[1] or nil
end

-- Sixty seconds touch this many of the clock's.
local MINUTE = 61

local clock = redis.call('time')
local second = tonumber(clock[1])
local millis = second * 1000 + math.floor(tonumber(clock[2]) / 1000)

-- Lua would write large numbers with an exponent.
local function int(number)
    return string.format('%.0f', number)
end

local function number(text)
    return tonumber(text or 0) or 0
end

-- What a counter of the minute holds, once what has left it is taken out. `from` is the oldest
-- second that may have something, so that nothing is looked at twice; there is none where the
-- counter holds nothing.
local function minute(key)
    local found = redis.call('hmget', key, 'from', 'sum')
    local from, sum = tonumber(found[1]), number(found[2])
    if not from then
        return 0
    end
    local oldest = second - MINUTE + 1
    -- Nobody has written for so long that it should have expired.
    if from < oldest - 2 * MINUTE then
        redis.call('del', key)
        return 0
    end
    if from < oldest then
        for gone = from, oldest - 1 do
            local amount = redis.call('hget', key, int(gone))
            if amount then
                sum = sum - tonumber(amount)
                redis.call('hdel', key, int(gone))
            end
        end
        from = oldest
        redis.call('hset', key, 'from', int(from), 'sum', int(sum))
    end
    return sum, from
end
