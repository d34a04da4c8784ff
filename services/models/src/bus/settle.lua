-- Replaces what a call reserved by what it took. Repeating it changes nothing.
--
-- ARGV: the call's id, its tokens, its cost.
local id, tokens, micros = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if not current_epoch() then
    return {'lost'}
end
local record = redis.call('hget', held, id)
if not record then
    return {'gone'}
end
local _, began, its_day, its_month, wanted = string.match(record, '^(.-)\n(.-)\n(.-)\n(.-)\n(.-)\n')
began = tonumber(began)
local homes = {day = day .. its_day, month = month .. its_month}

for _, check in ipairs(cjson.decode(wanted)) do
    local took = check.measure == 'tokens' and tokens or micros
    if check.window == 'live' then
        if redis.call('hincrby', live, check.counter, -1) <= 0 then
            redis.call('hdel', live, check.counter)
        end
    elseif check.window == 'budget' then
        redis.call('hincrby', budgets, check.counter .. ':held', int(-check.need))
        redis.call('hincrby', budgets, check.counter .. ':spent', int(micros))
    elseif check.window == 'minute' then
        -- What was counted as a request stays one, whatever came of it.
        if check.measure == 'tokens' then
            local key = prefix .. 'minute:' .. check.counter
            local _, from = minute(key)
            if from and began >= from then
                redis.call('hincrby', key, 'sum', int(took - check.need))
                redis.call('hincrby', key, int(began), int(took - check.need))
            end
        end
    elseif redis.call('exists', homes[check.window]) == 1 then
        redis.call('hincrby', homes[check.window], check.counter, int(took - check.need))
    end
end
redis.call('hdel', held, id)
return {'settled'}
