/* See stop_token.h. */
#include "model/stop_token.h"

#include "data/mask.h"
#include "files/file.h"

#include <string.h>

enum { MAX_CONFIG_BYTES = 1 << 20 };

Status stop_token_find(const Tokenizer *tokenizer, const Template *tmpl, int32_t *out_id)
{
    static const char turns[] = "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}]";
    Arena             arena = {0};
    JsonValue         messages;
    MaskRules        *rules;
    MaskEncoder       encoder;
    int8_t            train[2] = {-1, -1};
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
    arena_deinit(&arena);
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

/* The ids there are (or the tokenizer's EOS), and this one. */
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
    JsonValue config = {.type = JSON_OBJECT};
    bool      is_there;
    TRY(file_exists(path, &is_there));
    if (is_there) {
        Str text;
        TRY(file_read(arena, path, MAX_CONFIG_BYTES, &text));
        TRY(json_parse(arena, path, text.data, text.len, &config));
    }
    FAIL_IF(config.type != JSON_OBJECT, ERR_INVALID, "%s: expected an object", path);
    const char      *key = "eos_token_id";
    const JsonValue *old = json_get(&config, key);
    if (names_id(old, id)) return OK;
    JsonValue   ids = with_id(arena, old, eos, id);
    JsonMember *members = arena_array(arena, JsonMember, config.count + 1);
    uint32_t    count = 0;
    for (uint32_t i = 0; i < config.count; i++)
        if (&config.members[i].value != old) members[count++] = config.members[i];
    members[count++] = (JsonMember){str_of(key), ids};
    config.members = members;
    config.count = count;
    StrBuf text = {0};
    json_write(&text, &config, 2);
    strbuf_putc(&text, '\n');
    Status status = file_write_atomic(path, text.data, text.len);
    strbuf_deinit(&text);
    return status;
}

Status stop_token_save(int32_t id, int32_t eos, const char *folder)
{
    Arena  arena = {0};
    Status status = add_id(&arena, arena_printf(&arena, "%s/generation_config.json", folder), id, eos);
    arena_deinit(&arena);
    return status;
}
