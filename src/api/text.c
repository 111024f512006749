/* Tokenizers and chat templates. */
#include "api/api.h"

#include "data/mask.h"
#include "infer/chat.h"
#include "model/hf_model.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)SG_TRAIN_ASSISTANT == (int)TRAIN_ON_ASSISTANT && (int)SG_TRAIN_LAST_TURN == (int)TRAIN_ON_LAST_TURN &&
                   (int)SG_TRAIN_ALL == (int)TRAIN_ON_ALL,
               "sg_train_on follows TrainOn");

struct sg_tokenizer {
    Tokenizer        *tokenizer;
    TokenizerScratch *scratch;
};

struct sg_chat_template {
    Template *tmpl;
};

/* ---- tokenizers ---- */

static Status open_tokenizer(const char *dir, sg_tokenizer **out)
{
    Arena       arena = {0};
    const char *local, *gguf;
    Tokenizer  *tokenizer = NULL;
    TRY(api_need(dir, "dir"));
    TRY(api_need(out, "out_tokenizer"));
    Status status = hf_local_dir(&arena, dir, &local, &gguf);
    if (status == OK) status = tokenizer_load(local, &tokenizer);
    arena_deinit(&arena);
    TRY(status);
    *out = api_allocate(sizeof **out);
    **out = (sg_tokenizer){tokenizer, tokenizer_scratch_create(tokenizer)};
    return OK;
}

sg_status sg_tokenizer_open(const char *dir, sg_tokenizer **out_tokenizer)
{
    api_begin();
    return api_end(open_tokenizer(dir, out_tokenizer));
}

void sg_tokenizer_close(sg_tokenizer *tokenizer)
{
    if (!tokenizer) return;
    tokenizer_scratch_destroy(tokenizer->scratch);
    tokenizer_destroy(tokenizer->tokenizer);
    sg_free(tokenizer);
}

sg_status sg_tokenizer_get_info(sg_tokenizer *tokenizer, sg_tokenizer_info *out_info)
{
    api_begin();
    Status status = api_need(tokenizer, "tokenizer");
    if (status == OK) status = api_need(out_info, "out_info");
    if (status == OK)
        *out_info = (sg_tokenizer_info){.vocab_size = tokenizer_vocab_size(tokenizer->tokenizer),
                                        .bos = tokenizer_bos_id(tokenizer->tokenizer),
                                        .eos = tokenizer_eos_id(tokenizer->tokenizer),
                                        .pad = tokenizer_pad_id(tokenizer->tokenizer)};
    return api_end(status);
}

sg_status sg_tokenizer_encode(sg_tokenizer *tokenizer, const char *text, size_t len, bool add_special, int32_t **out_ids, size_t *out_num)
{
    TokenIds ids = {0};
    api_begin();
    Status status = api_need(tokenizer, "tokenizer");
    if (status == OK && len) status = api_need(text, "text");
    if (status == OK)
        status = tokenizer_encode(tokenizer->tokenizer, tokenizer->scratch, text ? text : "", len,
                                  (EncodeOptions){.add_special = add_special}, &ids);
    return api_end(api_hand_ids(status, &ids, out_ids, out_num));
}

sg_status sg_tokenizer_decode(sg_tokenizer *tokenizer, const int32_t *ids, size_t num, bool skip_special, char **out_text, size_t *out_len)
{
    StrBuf text = {0};
    api_begin();
    Status status = api_need(tokenizer, "tokenizer");
    if (status == OK && num) status = api_need(ids, "ids");
    if (status == OK) status = tokenizer_decode(tokenizer->tokenizer, ids, num, skip_special, &text);
    if (status == OK && out_len) *out_len = text.len;
    return api_end(api_hand_text(status, &text, out_text));
}

/* ---- chat templates ---- */

static Status load_template(const char *dir, const char *source, Template **out)
{
    if (source) {
        TRY(template_parse("chat template", source, strlen(source), out));
        return dir ? template_use_folder(*out, dir) : OK;
    }
    TRY(template_load(dir, NULL, false, out));
    FAIL_IF(!*out, ERR_NOT_FOUND, "%s has no chat template: expected chat_template.jinja, or chat_template in tokenizer_config.json", dir);
    return OK;
}

static Status open_template(const char *dir, const char *source, sg_chat_template **out)
{
    Arena       arena = {0};
    const char *local = NULL, *gguf;
    Template   *tmpl = NULL;
    TRY(api_need(out, "out_template"));
    FAIL_IF(!dir && !source, ERR_INVALID, "a chat template of no folder and no source");
    Status status = dir ? hf_local_dir(&arena, dir, &local, &gguf) : OK;
    if (status == OK) status = load_template(local, source, &tmpl);
    arena_deinit(&arena);
    if (status != OK) {
        if (tmpl) template_destroy(tmpl);
        return status;
    }
    *out = api_allocate(sizeof **out);
    (*out)->tmpl = tmpl;
    return OK;
}

sg_status sg_chat_template_open(const char *dir, const char *source, sg_chat_template **out_template)
{
    api_begin();
    return api_end(open_template(dir, source, out_template));
}

void sg_chat_template_close(sg_chat_template *tmpl)
{
    if (!tmpl) return;
    template_destroy(tmpl->tmpl);
    sg_free(tmpl);
}

/* Parses {"messages": [...], "tools": [...]}, or a list of messages alone, to an object with these fields. */
static Status read_conversation(Arena *arena, const char *json, JsonValue *out_row)
{
    TRY(api_need(json, "conversation"));
    TRY(json_parse(arena, "conversation", json, strlen(json), out_row));
    if (out_row->type == JSON_OBJECT) return OK;
    FAIL_IF(out_row->type != JSON_ARRAY, ERR_INVALID, "conversation: expected a list of messages, or an object with the field messages");
    const char *row = arena_printf(arena, "{\"messages\": %s}", json);
    return json_parse(arena, "conversation", row, strlen(row), out_row);
}

static Status render(sg_chat_template *tmpl, Arena *arena, const char *json, bool add_generation_prompt, StrBuf *text)
{
    JsonValue      row;
    TemplateOutput out = {0};
    TRY(api_need(tmpl, "template"));
    TRY(read_conversation(arena, json, &row));
    TemplateInput input = {.messages = json_get(&row, "messages"),
                           .tools = json_get(&row, "tools"),
                           .documents = json_get(&row, "documents"),
                           .add_generation_prompt = add_generation_prompt};
    FAIL_IF(!input.messages || input.messages->type != JSON_ARRAY, ERR_INVALID, "conversation: expected a list of messages");
    FAIL_IF(input.tools && input.tools->type != JSON_ARRAY, ERR_INVALID, "conversation: expected a list of tools");
    FAIL_IF(input.documents && input.documents->type != JSON_ARRAY, ERR_INVALID, "conversation: expected a list of documents");
    Status status = chat_render(tmpl->tmpl, &input, &out);
    if (status == OK) strbuf_append(text, out.text.data, out.text.len);
    template_output_deinit(&out);
    return status;
}

sg_status sg_chat_template_render(sg_chat_template *tmpl, const char *conversation, bool add_generation_prompt, char **out_text)
{
    return sg_chat_template_render_text(tmpl, conversation, add_generation_prompt, out_text, NULL);
}

sg_status sg_chat_template_render_text(sg_chat_template *tmpl, const char *conversation, bool add_generation_prompt, char **out_text,
                                       size_t *out_len)
{
    Arena  arena = {0};
    StrBuf text = {0};
    api_begin();
    Status status = render(tmpl, &arena, conversation, add_generation_prompt, &text);
    arena_deinit(&arena);
    if (status == OK && out_len) *out_len = text.len;
    return api_end(api_hand_text(status, &text, out_text));
}

static Status encode_row(Arena *arena, const JsonValue *row, const MaskRules *rules, MaskEncoder *encoder)
{
    static const RowFormat format = {.type = DATASET_CONVERSATION, .messages_field = "messages", .tools_field = "tools"};
    Sample                 sample;
    TRY(format_row(arena, &(DatasetOptions){.type = DATASET_CONVERSATION}, &format, row, mask_rules_traits(rules), &sample));
    return mask_encode(encoder, arena, &sample);
}

static Status encode(sg_chat_template *tmpl, sg_tokenizer *tokenizer, const char *json, sg_train_on train_on, TokenIds *ids,
                     uint8_t **out_mask)
{
    Arena       arena = {0};
    JsonValue   row;
    MaskRules  *rules;
    MaskEncoder encoder;
    TRY(api_need(tmpl, "template"));
    TRY(api_need(tokenizer, "tokenizer"));
    FAIL_IF(train_on < SG_TRAIN_ASSISTANT || train_on > SG_TRAIN_ALL, ERR_INVALID, "train_on %d; expected one of sg_train_on",
            (int)train_on);
    TRY(mask_rules_create(tokenizer->tokenizer, tmpl->tmpl, (TrainOn)train_on, &rules));
    mask_encoder_init(&encoder, rules);
    Status status = read_conversation(&arena, json, &row);
    if (status == OK) status = encode_row(&arena, &row, rules, &encoder);
    if (status == OK) {
        for (size_t i = 0; i < encoder.ids.len; i++) token_ids_push(ids, encoder.ids.data[i]);
        *out_mask = api_allocate(encoder.ids.len);
        memcpy(*out_mask, encoder.mask, encoder.ids.len);
    }
    mask_encoder_deinit(&encoder);
    mask_rules_destroy(rules);
    arena_deinit(&arena);
    return status;
}

sg_status sg_chat_template_encode(sg_chat_template *tmpl, sg_tokenizer *tokenizer, const char *conversation, sg_train_on train_on,
                                  int32_t **out_ids, uint8_t **out_mask, size_t *out_num)
{
    TokenIds ids = {0};
    uint8_t *mask = NULL;
    api_begin();
    Status status = api_need(out_mask, "out_mask");
    if (status == OK) status = encode(tmpl, tokenizer, conversation, train_on, &ids, &mask);
    status = api_hand_ids(status, &ids, out_ids, out_num);
    if (status == OK)
        *out_mask = mask;
    else
        free(mask);
    return api_end(status);
}
