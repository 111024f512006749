/* Trained rows of tokens in PEFT's folders: trainable_token_indices of adapter_config.json, and a tensor for each matrix. */
#include "model/peft_tokens.h"

#include "base/scoped.h"
#include "model/peft.h"
#include "passes/adapt_tokens.h"
#include "passes/adapt_whole.h"
#include "passes/peft_names.h"

#include <stdlib.h>
#include <string.h>

static Status read_ids(Arena *arena, const JsonValue *list, const char *name, LoraTokens *out)
{
    FAIL_IF(list->type != JSON_ARRAY || !list->count, ERR_INVALID,
            "%s: trainable_token_indices: expected a list of ids, or an object of such", name);
    int64_t *ids = arena_array(arena, int64_t, list->count);
    for (uint32_t i = 0; i < list->count; i++) {
        FAIL_IF(list->items[i].type != JSON_INT || list->items[i].integer < 0, ERR_INVALID,
                "%s: trainable_token_indices: expected whole numbers from 0", name);
        ids[i] = list->items[i].integer;
    }
    out->ids = ids;
    out->num = (int)list->count;
    return OK;
}

Status peft_read_tokens(Arena *arena, const JsonValue *config, const char *name, LoraOptions *lora)
{
    const JsonValue *value = json_get(config, "trainable_token_indices");
    bool             is_object = value && value->type == JSON_OBJECT;
    if (!value || value->type == JSON_NULL || (value->type == JSON_ARRAY && !value->count)) return OK;
    uint32_t    count = is_object ? value->count : 1;
    LoraTokens *tokens = arena_array(arena, LoraTokens, count);
    for (uint32_t i = 0; i < count; i++) {
        if (is_object) tokens[i].module = value->members[i].key.data;
        TRY(read_ids(arena, is_object ? &value->members[i].value : value, name, &tokens[i]));
    }
    lora->tokens = tokens;
    lora->num_tokens = (int)count;
    return OK;
}

const char *peft_tokens_path(Arena *arena, const char *tensor)
{
    return peft_module_of(arena, tensor, PEFT_END_TOKENS);
}

const LoraTokens *peft_tokens_of(const LoraOptions *lora, const char *path)
{
    for (int i = 0; i < lora->num_tokens; i++) {
        LoraOptions one = {.num_whole = 1, .whole = &lora->tokens[i].module};
        if (!lora->tokens[i].module || whole_has(&one, path, NULL)) return &lora->tokens[i];
    }
    return NULL;
}

Status peft_check_tokens(const StTensor *tensor, const LoraTokens *list, const StTensor *matrix)
{
    bool fits = tensor->ndim == 2 && matrix->ndim == 2 && list && tensor->dim[0] == list->num && tensor->dim[1] == matrix->dim[1];
    for (int i = 0; fits && i < list->num; i++)
        FAIL_IF(
            list->ids[i] >= matrix->dim[0], ERR_INVALID,
            "%s: trainable_token_indices has %lld, and %s of the base has rows 0 to %lld: name the tokens under new_tokens as the run did "
            "that trained them, or take that run's base (base_model_name_or_path)",
            tensor->path, (long long)list->ids[i], matrix->name, (long long)matrix->dim[0] - 1);
    FAIL_IF(!fits, ERR_INVALID, "%s: tensor %s doesn't fit trainable_token_indices and tensor %s of the base", tensor->path, tensor->name,
            matrix->name);
    return st_check_range(tensor, DT_F32);
}

Status peft_find_tokens(Arena *arena, const StFile *file, const char *name, LoraOptions *lora)
{
    LoraTokens *kept = arena_array(arena, LoraTokens, lora->num_tokens + 1);
    int         count = 0;
    for (size_t i = 0; i < st_count(file); i++) {
        const char       *path = peft_tokens_path(arena, st_at(file, i)->name);
        const LoraTokens *list = path ? peft_tokens_of(lora, path) : NULL;
        if (!path) continue;
        FAIL_IF(!list || count == lora->num_tokens, ERR_INVALID, "%s: tensor %s: trainable_token_indices doesn't name %s", name,
                st_at(file, i)->name, path);
        kept[count++] = *list;
    }
    FAIL_IF(lora->num_tokens && !count, ERR_INVALID, "%s: trainable_token_indices: there are no tensors of such rows", name);
    lora->tokens = kept; /* PEFT stores no tensor for a head that is the embedding */
    lora->num_tokens = count;
    return OK;
}

void peft_write_tokens(const LoraOptions *lora, StrBuf *out)
{
    bool is_plain = lora->num_tokens == 1 && !lora->tokens[0].module;
    strbuf_puts(out, is_plain ? "" : "{");
    for (int i = 0; i < lora->num_tokens; i++) {
        if (i) strbuf_puts(out, ", ");
        if (!is_plain) json_write_string(out, lora->tokens[i].module, strlen(lora->tokens[i].module));
        strbuf_puts(out, is_plain ? "[" : ": [");
        for (int k = 0; k < lora->tokens[i].num; k++) strbuf_printf(out, "%s%lld", k ? ", " : "", (long long)lora->tokens[i].ids[k]);
        strbuf_puts(out, "]");
    }
    strbuf_puts(out, is_plain ? "" : "}");
}

/* ---- rows put into a session's matrix ---- */

static const Param *find_param(Arena *arena, const Plan *plan, const char *path)
{
    for (int i = 0; i < plan->num_params; i++) {
        const char *own = plan->params[i]->ns || plan->params[i]->is_adapter ? NULL : whole_path(arena, plan->params[i]);
        if (own && strcmp(own, path) == 0 && plan->params[i]->type.ndim == 2) return plan->params[i];
    }
    return NULL;
}

static Status place_rows(Session *session, const StTensor *tensor, const LoraTokens *list, const Param *param)
{
    int64_t cols = param->type.dim[1];
    size_t  bytes = (size_t)dtype_bytes(param->type.dtype, cols);
    SCOPED_ARRAY(float, values, cols);
    SCOPED_ARRAY(char, stored, bytes);
    for (int k = 0; k < list->num; k++) {
        TRY(st_to_f32(tensor, k * cols, cols, values));
        dtype_encode(param->type.dtype, values, cols, stored);
        TRY(session_write_range(session, param->name, (size_t)list->ids[k] * bytes, stored, bytes));
    }
    return OK;
}

Status peft_place_tokens(Session *session, const StFile *file, const LoraOptions *lora)
{
    SCOPED_ARENA(arena);
    for (size_t i = 0; i < st_count(file); i++) {
        const StTensor   *tensor = st_at(file, i);
        const char       *path = peft_tokens_path(&arena, tensor->name);
        const LoraTokens *list = path ? peft_tokens_of(lora, path) : NULL;
        const Param      *param = list ? find_param(&arena, session_plan(session), path) : NULL;
        if (!path) continue;
        StTensor matrix = {.name = path, .ndim = 2};
        if (param) memcpy(matrix.dim, param->type.dim, 2 * sizeof matrix.dim[0]);
        TRY(peft_check_tokens(tensor, list, &matrix));
        TRY(place_rows(session, tensor, list, param));
    }
    return OK;
}
