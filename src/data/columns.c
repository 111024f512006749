#include "data/columns.h"

#include "base/array.h"
#include "data/format_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void number_list_deinit(NumberList *list)
{
    free(list->data);
    *list = (NumberList){0};
}

static void push_number(NumberList *list, float number)
{
    list->data = array_room(list->data, list->len + 1, &list->capacity, sizeof *list->data);
    list->data[list->len++] = number;
}

static const JsonValue *column_of(Arena *arena, const JsonValue *row, const char *name)
{
    const JsonValue *value = row->type == JSON_OBJECT ? json_get(row, name) : NULL;
    return value ? format_parsed(arena, value) : NULL;
}

/* The first item that isn't null; NULL: every item is null. */
static const JsonValue *first_item(const JsonValue *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (list->items[i].type != JSON_NULL) return &list->items[i];
    return NULL;
}

/* Numbers per token, as this field shows; 0: unknown, the field has only nulls. */
static int64_t shown_size(const JsonValue *value)
{
    const JsonValue *item = value->type == JSON_ARRAY ? first_item(value) : value;
    if (!item || item->type == JSON_NULL) return 0;
    return item->type == JSON_ARRAY ? item->count : 1;
}

Status columns_detect(const DatasetOptions *options, const JsonValue *row, RowFormat *out)
{
    Arena  arena = {0};
    Status status = OK;
    for (int i = 0; i < options->num_inputs && status == OK; i++) {
        const DatasetInput *input = &options->inputs[i];
        const JsonValue    *value = column_of(&arena, row, input->column);
        int64_t             size = value ? shown_size(value) : 0;
        if (!value)
            status = format_fail_missing("inputs", input->column, row);
        else if (size > OWN_MOST_SIZE)
            status = status_fail(ERR_INVALID, "field \"%s\" has %lld numbers a token; expected at most %d", input->column, (long long)size,
                                 OWN_MOST_SIZE);
        else if (!out->input_sizes[i])
            out->input_sizes[i] = size;
    }
    arena_deinit(&arena);
    return status;
}

bool columns_are_known(const DatasetOptions *options, const RowFormat *format)
{
    for (int i = 0; i < options->num_inputs; i++)
        if (!format->input_sizes[i]) return false;
    return true;
}

void columns_settle(const DatasetOptions *options, RowFormat *format)
{
    for (int i = 0; i < options->num_inputs; i++)
        if (!format->input_sizes[i]) format->input_sizes[i] = 1;
}

/* ---- the numbers of a row ---- */

/* Whether the value is a JSON null. NaN and infinities are of type JSON_NULL too, but with `number` set. */
static bool is_null(const JsonValue *value)
{
    return value->type == JSON_NULL && value->number == 0;
}

static Status read_number(const char *column, const JsonValue *value, NumberList *list)
{
    double number = value->type == JSON_INT ? (double)value->integer : value->number; /* JSON_NULL has 0 (a null), NaN or an infinity */
    if (value->type == JSON_BOOL) number = value->boolean;
    bool is_number = value->type == JSON_INT || value->type == JSON_DOUBLE || value->type == JSON_BOOL || value->type == JSON_NULL;
    FAIL_IF(!is_number, ERR_INVALID, "field \"%s\" has %s; expected a number", column, json_type_name(value->type));
    FAIL_IF(!isfinite((float)number), ERR_INVALID, "field \"%s\" has %g; expected a number that fp32 holds", column, number);
    push_number(list, value->type == JSON_NULL ? NAN : (float)number);
    return OK;
}

/* Appends the `size` numbers of one token; a null becomes NaN. */
static Status read_token(const char *column, const JsonValue *value, int64_t size, NumberList *list)
{
    if (is_null(value)) {
        for (int64_t k = 0; k < size; k++) push_number(list, NAN);
        return OK;
    }
    if (value->type != JSON_ARRAY && size == 1) return read_number(column, value, list);
    FAIL_IF(value->type != JSON_ARRAY || value->count != size, ERR_INVALID,
            "field \"%s\" has %lld numbers for a token; expected %lld, as the first one that has any", column,
            value->type == JSON_ARRAY ? (long long)value->count : 1LL, (long long)size);
    for (uint32_t k = 0; k < value->count; k++) TRY(read_number(column, &value->items[k], list));
    return OK;
}

Status columns_read(Arena *arena, const DatasetOptions *options, const RowFormat *format, const JsonValue *row, NumberList *list,
                    RowNumbers *out)
{
    out->first = list->len;
    for (int i = 0; i < options->num_inputs; i++) {
        const char      *column = options->inputs[i].column;
        const JsonValue *value = column_of(arena, row, column);
        FAIL_IF(!value || is_null(value), ERR_INVALID, "field \"%s\" is %s; expected numbers for the input %s", column,
                value ? "null" : "missing", options->inputs[i].name);
        if (value->type != JSON_ARRAY) {
            FAIL_IF(format->input_sizes[i] != 1, ERR_INVALID, "field \"%s\" is %s; expected a list with %lld numbers for each token",
                    column, json_type_name(value->type), (long long)format->input_sizes[i]);
            TRY(read_number(column, value, list));
            out->tokens[i] = ALL_TOKENS;
            continue;
        }
        for (uint32_t t = 0; t < value->count; t++) TRY(read_token(column, &value->items[t], format->input_sizes[i], list));
        out->tokens[i] = value->count;
    }
    return OK;
}

Status columns_place(const DatasetOptions *options, const RowFormat *format, const NumberList *from, const RowNumbers *row,
                     int64_t num_tokens, NumberList *out)
{
    const float *at[SHARD_MOST_COLUMNS], *next = from->data + row->first;
    for (int i = 0; i < options->num_inputs; i++) {
        FAIL_IF(row->tokens[i] != ALL_TOKENS && row->tokens[i] != num_tokens, ERR_INVALID,
                "field \"%s\" has numbers for %lld tokens, the row has %lld; expected one for each (BOS and EOS too), or one for all",
                options->inputs[i].column, (long long)row->tokens[i], (long long)num_tokens);
        at[i] = next;
        next += row->tokens[i] == ALL_TOKENS ? 1 : row->tokens[i] * format->input_sizes[i];
    }
    for (int64_t t = 0; t < num_tokens; t++)
        for (int i = 0; i < options->num_inputs; i++)
            for (int64_t k = 0; k < format->input_sizes[i]; k++)
                push_number(out, row->tokens[i] == ALL_TOKENS ? at[i][0] : at[i][t * format->input_sizes[i] + k]);
    return OK;
}

void columns_describe(const DatasetOptions *options, const RowFormat *format, ShardColumn *out)
{
    for (int i = 0; i < options->num_inputs; i++) {
        out[i] = (ShardColumn){.size = format->input_sizes[i]};
        snprintf(out[i].name, sizeof out[i].name, "%s", options->inputs[i].name);
    }
}
