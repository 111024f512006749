/* See stop_token.h. */
#include "model/stop_token.h"

#include "base/json_edit.h"
#include "base/scoped.h"
#include "data/mask.h"
#include "files/json_file.h"

#include <string.h>

enum { MAX_CONFIG_BYTES = 1 << 20 };

Status stop_token_find(const Tokenizer *tokenizer, const Template *tmpl, int32_t *out_id)
{
    static const char turns[] = "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]";
    SCOPED_ARENA(arena);
    JsonValue   messages;
    MaskRules  *rules;
    MaskEncoder encoder;
    int8_t      train[2] = {-1, -1};
    *out_id = -1;
    TRY(mask_rules_create(tokenizer, tmpl, TRAIN_ON_ASSISTANT, &rules));
    mask_encoder_init(&encoder, rules);
    Status status = json_parse(&arena, "turns", turns, strlen(turns), &messages);
    if (status == OK && mask_encode(&encoder, &arena, &(Sample){.messages = &messages, .train = train}) == OK) {
        size_t last = encoder.ids.len;
        while (last > 0 && !encoder.mask[last - 1]) last--;
        if (last > 0 && tokenizer_is_special(tokenizer, encoder.ids.data[last - 1])) *out_id = encoder.ids.data[last - 1];
    }
    status_clear();
    mask_encoder_deinit(&encoder);
    mask_rules_destroy(rules);
    return status;
}

static bool names_id(const JsonValue *value, int64_t id)
{
    if (!value) return false;
    if (value->type == JSON_INT) return value->integer == id;
    for (uint32_t i = 0; value->type == JSON_ARRAY && i < value->count; i++)
        if (names_id(&value->items[i], id)) return true;
    return false;
}

/* A list of the old ids (if there are none, the tokenizer's EOS) with the new id added. */
static JsonValue with_id(Arena *arena, const JsonValue *old, int32_t eos, int32_t id)
{
    uint32_t   count = old && old->type == JSON_ARRAY ? old->count : 0;
    JsonValue *items = arena_array(arena, JsonValue, count + 2);
    if (count) memcpy(items, old->items, count * sizeof *items);
    if (old && old->type == JSON_INT)
        items[count++] = *old;
    else if (!count && eos >= 0)
        items[count++] = (JsonValue){.type = JSON_INT, .integer = eos};
    items[count++] = (JsonValue){.type = JSON_INT, .integer = id};
    return (JsonValue){.type = JSON_ARRAY, .count = count, .items = items};
}

static Status add_id(Arena *arena, const char *path, int32_t id, int32_t eos)
{
    JsonValue config;
    TRY(json_file_read_if_there(arena, path, MAX_CONFIG_BYTES, &config));
    FAIL_IF(config.type != JSON_OBJECT && config.type != JSON_NULL, ERR_INVALID, "%s: expected an object", path);
    const char      *key = "eos_token_id";
    const JsonValue *old = json_get(&config, key);
    if (names_id(old, id)) return OK;
    JsonValue ids = with_id(arena, old, eos, id), copy = json_copy_object(arena, &config, 1);
    json_remove(&copy, key, NULL);
    json_set(&copy, str_of(key), ids);
    return json_file_write(path, &copy);
}

Status stop_token_save(int32_t id, int32_t eos, const char *folder)
{
    SCOPED_ARENA(arena);
    return add_id(&arena, arena_printf(&arena, "%s/generation_config.json", folder), id, eos);
}
