//! Tools with which an agent asks to be woken later.

use serde_json::json;

use super::about;
use crate::catalog::{About, Effect};

pub fn request() -> About {
    about(
        "request_wakeup",
        "Asks for a turn of yours later, in this session: after a delay, at a time, or again and \
         again by a cron pattern. Use it to come back to something that takes its time, or to do \
         what the person wants done regularly. Nobody is there then to ask: write the message so \
         that you know by itself what to do. A pattern ends by itself after some days, with a last \
         time. It answers with an id, by which you can cancel it. Give exactly one of \
         delay_seconds, cron and at.",
        Effect::Changes,
        json!({
            "message": {
                "type": "string",
                "minLength": 1,
                "maxLength": 16_384,
                "description": "What you tell yourself then.",
            },
            "delay_seconds": {
                "type": "integer",
                "minimum": 1,
                "maximum": 31_622_400,
                "description": "How many seconds from now.",
            },
            "cron": {
                "type": "string",
                "minLength": 1,
                "maxLength": 200,
                "description": "Five fields (minute, hour, day of month, month, day of week), or six \
                    with seconds first, like `0 9 * * MON-FRI`.",
            },
            "at": {
                "type": "string",
                "minLength": 1,
                "maxLength": 64,
                "description": "A time like `2030-01-31T09:00:00Z`.",
            },
            "time_zone": {
                "type": "string",
                "maxLength": 100,
                "description": "Of the pattern, like `Europe/Berlin`. Default: UTC.",
            },
        }),
        &["message"],
    )
}

pub fn cancel() -> About {
    about(
        "cancel_wakeup",
        "Takes back a wake-up that you asked for in this session and that is no longer needed.",
        Effect::Changes,
        json!({
            "wakeup_id": {
                "type": "string",
                "pattern": "^trg_[0-9a-z]{26}$",
                "description": "The id that `request_wakeup` answered with.",
            },
        }),
        &["wakeup_id"],
    )
}
