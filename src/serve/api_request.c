/* See api_request.h. A table of fields says which values each may have; a field that needs further checks has a function. */
#include "serve/api_request.h"

#include "base/json.h"
#include "infer/chat.h"
#include "infer/row_adapters.h"
#include "serve/api_echo.h"
#include "serve/api_messages.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { MOST_STOPS = 16, MOST_BIASES = 300, MOST_PROMPTS = 1024, MOST_TOP_TEXT = 20, DEFAULT_TOKENS = 16, MOST_LOGPROBS = 1 << 20 };

typedef struct Reading {
    const ApiModel  *model;
    ApiRequest      *request;
    const char      *name;                                           /* the field being read */
    Arena            body;                                           /* the request's parsed JSON; freed when reading ends */
    const JsonValue *messages, *tools, *variables, *prompt, *tokens; /* NULL: the request doesn't have the field */
    const JsonValue *tool_choice;                                    /* NULL: no call is forced */
    bool             has_special, adds_special;                      /* whether add_special_tokens was given, and its value */
    bool             wants_one_call;
} Reading;

typedef enum FieldKind { FIELD_NUMBER, FIELD_WHOLE, FIELD_SWITCH, FIELD_OWN, FIELD_INERT, FIELD_REFUSED } FieldKind;

typedef struct Field {
    const char *name;
    int         routes;
    FieldKind   kind;
    size_t      offset; /* of the member in ApiRequest */
    double      least, most;
    int64_t     least_whole, most_whole;
    Status (*read)(Reading *r, const JsonValue *value);
    const char *help;
} Field;

/* ---- values ---- */

static Status want(const JsonValue *value, JsonType type, const char *expected)
{
    FAIL_IF(value->type != type, ERR_INVALID, "it is %s; expected %s", json_type_name(value->type), expected);
    return OK;
}

static Status to_number(const JsonValue *value, double least, double most, double *out)
{
    bool   is_number = value->type == JSON_INT || value->type == JSON_DOUBLE;
    double number = value->type == JSON_INT ? (double)value->integer : value->type == JSON_DOUBLE ? value->number : 0;
    FAIL_IF(!is_number, ERR_INVALID, "it is %s; expected a number from %g to %g", json_type_name(value->type), least, most);
    FAIL_IF(!(number >= least && number <= most), ERR_INVALID, "it is %g; expected a number from %g to %g", number, least, most);
    *out = number;
    return OK;
}

static Status to_whole(const JsonValue *value, int64_t least, int64_t most, int64_t *out)
{
    FAIL_IF(value->type != JSON_INT, ERR_INVALID, "it is %s; expected a whole number from %lld to %lld",
            value->type == JSON_DOUBLE ? "no whole number, or too large" : json_type_name(value->type), (long long)least, (long long)most);
    FAIL_IF(value->integer < least || value->integer > most, ERR_INVALID, "it is %lld; expected a whole number from %lld to %lld",
            (long long)value->integer, (long long)least, (long long)most);
    *out = value->integer;
    return OK;
}

static Status to_bool(const JsonValue *value, bool *out)
{
    TRY(want(value, JSON_BOOL, "true or false"));
    *out = value->boolean;
    return OK;
}

/* ---- the model and the prompt ---- */

int api_find_model(const ApiModel *m, Str name)
{
    if (str_equal(name, m->name)) return 0;
    for (int i = 0; i < m->infer->num_row_adapters; i++)
        if (str_equal(name, m->infer->row_adapters[i].name)) return i + 1;
    return -1;
}

static Status unknown_model(Reading *r, Str name)
{
    StrBuf names = {0};
    strbuf_puts(&names, r->model->name);
    for (int i = 0; i < r->model->infer->num_row_adapters; i++) strbuf_printf(&names, ", %s", r->model->infer->row_adapters[i].name);
    r->request->status = 404;
    r->request->code = "model_not_found";
    Status status = status_fail(ERR_INVALID, "there is no model %.*s; expected one of %s", (int)(name.len < 100 ? name.len : 100),
                                name.data, strbuf_cstr(&names));
    strbuf_deinit(&names);
    return status;
}

static Status read_model(Reading *r, const JsonValue *value)
{
    TRY(want(value, JSON_STRING, "the name of a model"));
    r->request->adapter = api_find_model(r->model, value->string);
    if (r->request->adapter < 0) return unknown_model(r, value->string);
    r->request->model = r->request->adapter ? r->model->infer->row_adapters[r->request->adapter - 1].name : r->model->name;
    return OK;
}

static Status read_prompt(Reading *r, const JsonValue *value)
{
    r->prompt = value;
    return OK;
}

static Status read_messages(Reading *r, const JsonValue *value)
{
    r->messages = value;
    return OK;
}

static Status read_tokens(Reading *r, const JsonValue *value)
{
    r->tokens = value;
    return want(value, JSON_ARRAY, "a list of token ids");
}

static Status add_ids(Reading *r, const JsonValue *list)
{
    int64_t most = r->model->infer->model->vocab_size - 1, id;
    for (uint32_t i = 0; i < list->count; i++) {
        FAIL_IF(list->items[i].type != JSON_INT, ERR_INVALID, "item %u is %s among token ids; expected a whole number", i,
                json_type_name(list->items[i].type));
        id = list->items[i].integer;
        FAIL_IF(id < 0 || id > most, ERR_INVALID, "item %u is no token id: %lld; expected 0 to %lld", i, (long long)id, (long long)most);
        token_ids_push(&r->request->ids, (int32_t)id);
    }
    return OK;
}

static Status add_text(Reading *r, Str text, bool add_special)
{
    InferModel *infer = r->model->infer;
    size_t      first = r->request->ids.len;
    TRY(tokenizer_encode(infer->tokenizer, r->model->scratch, text.data, text.len, (EncodeOptions){.add_special = add_special},
                         &r->request->ids));
    return infer_check_ids(infer, &r->request->ids, first);
}

static Status end_prompt(Reading *r, size_t first, Str text)
{
    ApiRequest *q = r->request;
    size_t      num = q->ids.len - first;
    FAIL_IF(!num, ERR_INVALID, "the prompt is empty, and the tokenizer adds no token of its own; expected at least one token");
    if ((int64_t)num > r->model->context) {
        q->code = "context_length_exceeded";
        FAIL(ERR_INVALID, "the prompt has %zu tokens, the context %lld; shorten it", num, (long long)r->model->context);
    }
    ApiPrompt *prompt = &q->prompts[q->num_prompts++];
    *prompt = (ApiPrompt){.first = first, .num = num, .text = text};
    if (q->echoes) api_echo(&q->arena, r->model->infer->tokenizer, q->ids.data + first, prompt);
    prompt->text = (Str){0};
    return OK;
}

static Status add_prompt(Reading *r, const JsonValue *value)
{
    size_t first = r->request->ids.len;
    bool   is_text = value->type == JSON_STRING;
    FAIL_IF(!is_text && value->type != JSON_ARRAY, ERR_INVALID, "an item is %s; expected texts, or lists of token ids",
            json_type_name(value->type));
    TRY(is_text ? add_text(r, value->string, true) : add_ids(r, value));
    return end_prompt(r, first, is_text ? value->string : (Str){0});
}

static Status encode_prompts(Reading *r)
{
    ApiRequest      *q = r->request;
    const JsonValue *value = r->prompt;
    r->name = "prompt";
    FAIL_IF(!value, ERR_INVALID, "it is missing; expected a text, a list of texts, a list of token ids, or a list of such lists");
    bool is_list = value->type == JSON_ARRAY, is_ids = is_list && value->count && value->items[0].type == JSON_INT;
    FAIL_IF(!is_list && value->type != JSON_STRING, ERR_INVALID, "it is %s; expected a text, a list of texts, or token ids",
            json_type_name(value->type));
    FAIL_IF(is_list && !value->count, ERR_INVALID, "it is an empty list; expected at least one prompt");
    uint32_t count = is_list && !is_ids ? value->count : 1;
    FAIL_IF(count > MOST_PROMPTS, ERR_INVALID, "it has %u prompts; expected at most %d", count, MOST_PROMPTS);
    q->prompts = arena_array(&q->arena, ApiPrompt, count);
    for (uint32_t i = 0; i < count; i++) TRY(add_prompt(r, is_list && !is_ids ? &value->items[i] : value));
    return OK;
}

/* Refuses tools if the template doesn't print them: the model would silently not see them. */
static Status check_tools(Reading *r, ChatMessages chat)
{
    const TokenIds *with = &r->request->ids;
    TokenIds        without = {0};
    if (!chat.tools) return OK;
    chat.tools = NULL;
    Status status = chat_encode_messages(r->model->tmpl, r->model->infer->tokenizer, r->model->scratch, &chat, &without);
    if (status == OK && with->len == without.len && memcmp(with->data, without.data, with->len * sizeof *with->data) == 0) {
        r->name = "tools";
        status = status_fail(ERR_UNSUPPORTED, "the model's chat template prints no tools");
    }
    token_ids_deinit(&without);
    return status;
}

static bool says(const JsonValue *value, const char *text)
{
    return value && value->type == JSON_STRING && str_equal(value->string, text);
}

/* The names of the functions that may be called: of all tools, or only the function that tool_choice names. */
static Status forced_names(Reading *r, StrList *out)
{
    const char *wanted = NULL;
    if (r->tool_choice->type == JSON_OBJECT) (void)json_get_str(json_get(r->tool_choice, "function"), "name", &wanted);
    for (uint32_t i = 0; r->tools && i < r->tools->count; i++) {
        const char *name = "";
        (void)json_get_str(json_get(&r->tools->items[i], "function"), "name", &name);
        if ((!wanted || strcmp(name, wanted) == 0) && !str_list_has(out, name)) str_list_push(&r->body, out, name);
    }
    FAIL_IF(!r->tools, ERR_INVALID, "a call is asked for, and there are no tools; expected some in tools");
    FAIL_IF(!out->count, ERR_INVALID, "there is no function %.60s among the tools", wanted ? wanted : "with a name");
    return OK;
}

static Status force_call(Reading *r, const ChatMessages *chat)
{
    StrList names = {0};
    r->name = "tool_choice";
    TRY(forced_names(r, &names));
    FAIL_IF(r->request->wants_json, ERR_INVALID, "a call is asked for, and response_format asks for a JSON object; leave one of them out");
    return forced_call_find(&r->request->arena, r->model->tmpl, r->model->infer->tokenizer, chat, &names, &r->request->forced);
}

static Status encode_chat(Reading *r)
{
    ApiRequest  *q = r->request;
    ChatMessages chat = {.tools = r->tools, .variables = r->variables};
    r->name = "messages";
    FAIL_IF(!r->messages, ERR_INVALID, "it is missing; expected a list of messages {\"role\", \"content\"}");
    FAIL_IF(!r->model->tmpl, ERR_UNSUPPORTED,
            "the model has no chat template (chat_template.jinja), which lays out messages; use /v1/completions");
    TRY(api_messages(&r->body, r->messages, &chat.messages));
    TRY(api_settle_roles(&r->body, r->model->tmpl, &chat, &r->name));
    if (r->tool_choice) TRY(force_call(r, &chat));
    r->name = "messages";
    chat.opening = q->forced.opening;
    TRY(chat_encode_messages(r->model->tmpl, r->model->infer->tokenizer, r->model->scratch, &chat, &q->ids));
    TRY(infer_check_ids(r->model->infer, &q->ids, 0));
    return check_tools(r, chat);
}

static Status encode_chat_prompt(Reading *r)
{
    r->request->prompts = arena_array(&r->request->arena, ApiPrompt, 1);
    TRY(encode_chat(r));
    return end_prompt(r, 0, (Str){0});
}

/* ---- fields that need more ---- */

static Status read_stream_options(Reading *r, const JsonValue *value)
{
    TRY(want(value, JSON_OBJECT, "{\"include_usage\": true}"));
    for (uint32_t i = 0; i < value->count; i++) {
        const JsonMember *member = &value->members[i];
        bool              ignored, is_obfuscation = str_equal(member->key, "include_obfuscation");
        FAIL_IF(!is_obfuscation && !str_equal(member->key, "include_usage"), ERR_INVALID,
                "it has the unknown field %.*s; expected include_usage", (int)(member->key.len < 60 ? member->key.len : 60),
                member->key.data);
        if (member->value.type != JSON_NULL) TRY(to_bool(&member->value, is_obfuscation ? &ignored : &r->request->tells_usage));
    }
    return OK;
}

static Status read_num_logprobs(Reading *r, const JsonValue *value)
{
    r->request->wants_logprobs = true;
    return to_whole(value, 0, MOST_TOP_TEXT, &r->request->top);
}

static Status add_stop(Reading *r, const JsonValue *value)
{
    TRY(want(value, JSON_STRING, "a text, or a list of texts"));
    FAIL_IF(!value->string.len || memchr(value->string.data, 0, value->string.len), ERR_INVALID,
            "one of them is empty or holds a NUL; expected texts");
    str_list_push(&r->request->arena, &r->request->stops, arena_strdup(&r->request->arena, value->string.data));
    return OK;
}

static Status read_stop(Reading *r, const JsonValue *value)
{
    if (value->type != JSON_ARRAY) return add_stop(r, value);
    FAIL_IF(value->count > MOST_STOPS, ERR_INVALID, "it has %u texts; expected at most %d", value->count, MOST_STOPS);
    for (uint32_t i = 0; i < value->count; i++) TRY(add_stop(r, &value->items[i]));
    return OK;
}

static Status read_bias(Reading *r, const JsonMember *member, int32_t *out_id, float *out_bias)
{
    int64_t num = infer_num_choices(r->model->infer);
    char   *end;
    double  bias;
    long    id = strtol(member->key.data, &end, 10);
    FAIL_IF(!member->key.len || member->key.data[0] < '0' || member->key.data[0] > '9' || end != member->key.data + member->key.len ||
                id < 0 || id >= num,
            ERR_INVALID, "\"%.*s\" is no token id; expected \"0\" to \"%lld\"", (int)(member->key.len < 40 ? member->key.len : 40),
            member->key.data, (long long)num - 1);
    TRY(to_number(&member->value, -100, 100, &bias));
    *out_id = (int32_t)id;
    *out_bias = (float)bias;
    return OK;
}

static Status read_logit_bias(Reading *r, const JsonValue *value)
{
    SampleOptions *s = &r->request->sample;
    TRY(want(value, JSON_OBJECT, "an object {\"TOKEN ID\": number}"));
    FAIL_IF(value->count > MOST_BIASES, ERR_INVALID, "it has %u tokens; expected at most %d", value->count, MOST_BIASES);
    int32_t *ids = arena_array(&r->request->arena, int32_t, value->count + 1);
    float   *biases = arena_array(&r->request->arena, float, value->count + 1);
    for (uint32_t i = 0; i < value->count; i++) {
        TRY(read_bias(r, &value->members[i], &ids[i], &biases[i]));
        for (uint32_t k = 0; k < i; k++) FAIL_IF(ids[k] == ids[i], ERR_INVALID, "it names token %d twice; expected each once", ids[i]);
    }
    s->bias_ids = ids;
    s->biases = biases;
    s->num_biases = (int)value->count;
    return OK;
}

static Status read_tools(Reading *r, const JsonValue *value)
{
    TRY(want(value, JSON_ARRAY, "a list of tools"));
    for (uint32_t i = 0; i < value->count; i++) {
        const JsonValue *function = json_get(&value->items[i], "function");
        const char      *name;
        FAIL_IF(!function || !json_get_str(function, "name", &name), ERR_INVALID,
                "item %u has no function with a name; expected {\"type\": \"function\", \"function\": {\"name\", \"description\", "
                "\"parameters\"}}",
                i);
    }
    if (value->count) r->tools = value;
    return OK;
}

static Status read_tool_choice(Reading *r, const JsonValue *value)
{
    const char *type = "", *name;
    if (value->type == JSON_OBJECT) (void)json_get_str(value, "type", &type);
    const JsonValue *function = value->type == JSON_OBJECT ? json_get(value, "function") : NULL;
    bool             is_named = strcmp(type, "function") == 0 && function && json_get_str(function, "name", &name);
    FAIL_IF(!is_named && !says(value, "none") && !says(value, "auto") && !says(value, "required"), ERR_UNSUPPORTED,
            "expected \"auto\", \"none\", \"required\", or {\"type\": \"function\", \"function\": {\"name\": ...}}");
    r->request->calls_tools = !says(value, "none");
    if (is_named || says(value, "required")) r->tool_choice = value;
    return OK;
}

static Status read_parallel_tool_calls(Reading *r, const JsonValue *value)
{
    bool is_allowed;
    TRY(to_bool(value, &is_allowed));
    r->wants_one_call = !is_allowed;
    return OK;
}

static Status read_response_format(Reading *r, const JsonValue *value)
{
    const char *type = "";
    FAIL_IF(!json_get_str(value, "type", &type), ERR_INVALID, "it has no type; expected {\"type\": \"text\"}");
    FAIL_IF(strcmp(type, "json_schema") == 0, ERR_UNSUPPORTED, "a schema can't be kept to here; expected the type text or json_object");
    r->request->wants_json = strcmp(type, "json_object") == 0;
    FAIL_IF(!r->request->wants_json && strcmp(type, "text") != 0, ERR_INVALID, "its type is %.60s; expected text or json_object", type);
    return OK;
}

static Status read_variables(Reading *r, const JsonValue *value)
{
    static const char *const given[] = {"messages", "tools", "add_generation_prompt"}; /* variables set by other fields */
    TRY(want(value, JSON_OBJECT, "an object of variables of the chat template"));
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        FAIL_IF(json_get(value, given[i]), ERR_INVALID, "it has %s, which the server gives the template itself; leave it out", given[i]);
    r->variables = value;
    return OK;
}

static Status read_add_special(Reading *r, const JsonValue *value)
{
    r->has_special = true;
    return to_bool(value, &r->adds_special);
}

static Status read_modalities(Reading *r, const JsonValue *value)
{
    (void)r;
    FAIL_IF(value->type != JSON_ARRAY || value->count != 1 || value->items[0].type != JSON_STRING ||
                !str_equal(value->items[0].string, "text"),
            ERR_UNSUPPORTED, "answers are text; expected [\"text\"], or leave it out");
    return OK;
}

/* ---- all fields ---- */

#define NUMBER(name_, routes_, member, least_, most_) \
    {.name = #name_, .routes = API_##routes_, .kind = FIELD_NUMBER, .offset = offsetof(ApiRequest, member), .least = least_, .most = most_},
#define WHOLE(name_, routes_, member, least_, most_) \
    {.name = #name_, \
     .routes = API_##routes_, \
     .kind = FIELD_WHOLE, \
     .offset = offsetof(ApiRequest, member), \
     .least_whole = least_, \
     .most_whole = most_},
#define SWITCH(name_, routes_, member) \
    {.name = #name_, .routes = API_##routes_, .kind = FIELD_SWITCH, .offset = offsetof(ApiRequest, member)},
#define OWN(name_, routes_, read_) {.name = #name_, .routes = API_##routes_, .kind = FIELD_OWN, .read = read_},
#define INERT(name_, routes_) {.name = #name_, .routes = API_##routes_, .kind = FIELD_INERT},
#define REFUSED(name_, routes_, help_) {.name = #name_, .routes = API_##routes_, .kind = FIELD_REFUSED, .help = help_},
static const Field fields[] = {
#include "serve/api_fields.def"
};
#undef NUMBER
#undef WHOLE
#undef SWITCH
#undef OWN
#undef INERT
#undef REFUSED
enum { NUM_FIELDS = sizeof fields / sizeof *fields };

static const Field *find_field(int route, Str name)
{
    for (size_t i = 0; i < NUM_FIELDS; i++)
        if ((fields[i].routes & route) && str_equal(name, fields[i].name)) return &fields[i];
    return NULL;
}

static Status unknown_field(int route, const char *name)
{
    const char *names[NUM_FIELDS];
    size_t      count = 0;
    for (size_t i = 0; i < NUM_FIELDS; i++)
        if ((fields[i].routes & route) && fields[i].kind != FIELD_REFUSED) names[count++] = fields[i].name;
    FAIL(ERR_INVALID, "there is no such field here%s", did_you_mean("; ", name, names, count));
}

static Status read_field(Reading *r, const Field *field, const JsonValue *value)
{
    char *at = (char *)r->request + field->offset;
    switch (field->kind) {
    case FIELD_NUMBER:
        return to_number(value, field->least, field->most, (double *)(void *)at);
    case FIELD_WHOLE:
        return to_whole(value, field->least_whole, field->most_whole, (int64_t *)(void *)at);
    case FIELD_SWITCH:
        return to_bool(value, (bool *)at);
    case FIELD_OWN:
        return field->read(r, value);
    case FIELD_INERT:
        return OK;
    case FIELD_REFUSED:
        FAIL(ERR_UNSUPPORTED, "it isn't honoured here: %s", field->help);
    }
    return OK;
}

static Status read_fields(Reading *r, const JsonValue *body)
{
    for (uint32_t i = 0; i < body->count; i++) {
        const JsonMember *member = &body->members[i];
        r->name = member->key.data;
        if (member->value.type == JSON_NULL) continue;
        const Field *field = find_field(r->request->route, member->key);
        TRY(field ? read_field(r, field, &member->value) : unknown_field(r->request->route, member->key.data));
        r->request->has_seed |= str_equal(member->key, "seed");
    }
    r->name = "model";
    FAIL_IF(!r->request->model && (r->request->route & API_BOTH), ERR_INVALID,
            "it is missing; expected the name of a model (GET /v1/models lists them)");
    return OK;
}

/* ---- what fields say together ---- */

static Status settle_tokens(Reading *r)
{
    ApiRequest *q = r->request;
    int64_t     most = r->model->max_tokens ? r->model->max_tokens : r->model->context;
    r->name = q->max_completion_tokens >= 0 ? "max_completion_tokens" : "max_tokens";
    if (q->max_completion_tokens >= 0) q->max_tokens = q->max_completion_tokens;
    FAIL_IF(q->max_tokens > most, ERR_INVALID, "it is %lld; expected at most %lld, this server's limit", (long long)q->max_tokens,
            (long long)most);
    if (q->max_tokens < 0) q->max_tokens = q->route == API_TEXT && most > DEFAULT_TOKENS ? DEFAULT_TOKENS : most;
    FAIL_IF(!q->max_tokens && !q->echoes, ERR_INVALID, "it is 0; expected at least 1 (0: with echo alone)");
    return OK;
}

static Status settle_logprobs(Reading *r)
{
    ApiRequest *q = r->request;
    r->name = "top_logprobs";
    FAIL_IF(q->top && !q->wants_logprobs, ERR_INVALID, "it needs \"logprobs\": true");
    bool penalises = q->sample.repetition != 1 || q->sample.presence != 0 || q->sample.frequency != 0;
    r->name = "echo";
    FAIL_IF(q->echoes && q->wants_logprobs && penalises, ERR_UNSUPPORTED,
            "with logprobs it excludes penalties, which would count the prompt's tokens as the text's");
    return OK;
}

/* "parallel_tool_calls": false is accepted if a call is forced: then there is exactly one. */
static Status settle_tools(Reading *r)
{
    if (!r->request->calls_tools) r->tools = NULL;
    r->request->calls_tools = r->tools != NULL;
    r->name = "parallel_tool_calls";
    FAIL_IF(r->wants_one_call && r->tools && !r->tool_choice, ERR_UNSUPPORTED,
            "the number of calls can't be limited here, unless tool_choice forces one; expected true, or leave it out");
    return OK;
}

/* A whole answer stays in memory until it is sent, so its log-probabilities are limited; a stream isn't limited. */
static Status check_size(Reading *r)
{
    const ApiRequest *q = r->request;
    int64_t           tokens = 0;
    if (q->streams || !q->wants_logprobs) return OK;
    for (int i = 0; i < q->num_prompts; i++) {
        int64_t num = (int64_t)q->prompts[i].num, room = r->model->context - num;
        tokens += (q->echoes ? num : 0) + (q->max_tokens < room ? q->max_tokens : room);
    }
    r->name = "logprobs";
    FAIL_IF(
        tokens > MOST_LOGPROBS / (q->num * (q->top + 1)), ERR_INVALID,
        "%lld texts of up to %lld tokens together, with %lld numbers each; expected at most %d log-probabilities in an answer as a whole: "
        "ask for \"stream\": true, or for fewer texts or tokens",
        (long long)(q->num_prompts * q->num), (long long)(tokens * q->num), (long long)q->top + 1, MOST_LOGPROBS);
    return OK;
}

static Status settle_seed(ApiRequest *q)
{
    q->sample.seed = (uint64_t)q->seed;
    if (q->has_seed) return OK;
    FAIL_IF(getrandom(&q->sample.seed, sizeof q->sample.seed, 0) != sizeof q->sample.seed, ERR_IO, "the system gives no random numbers");
    return OK;
}

static Status settle(Reading *r)
{
    ApiRequest *q = r->request;
    TRY(settle_tokens(r));
    TRY(settle_logprobs(r));
    r->name = "stream_options";
    FAIL_IF(q->tells_usage && !q->streams, ERR_INVALID, "it needs \"stream\": true");
    TRY(settle_tools(r));
    r->name = "seed";
    return settle_seed(q);
}

/* ---- requests ---- */

static Status parse_body(Reading *r, Str body, JsonValue *out)
{
    TRY(json_parse(&r->body, "the body", body.data, body.len, out));
    FAIL_IF(out->type != JSON_OBJECT, ERR_INVALID, "the body is %s; expected a JSON object", json_type_name(out->type));
    return OK;
}

static void init_request(int route, ApiRequest *q)
{
    *q = (ApiRequest){.route = route,
                      .num = 1,
                      .max_tokens = -1,
                      .max_completion_tokens = -1,
                      .calls_tools = true,
                      .status = 400,
                      .sample = {.temperature = 1, .top_p = 1, .repetition = 1}};
}

/* Puts the field's name in front of the message, and frees the parsed JSON of the body. */
static Status end_reading(Reading *r, Status status)
{
    if (status != OK && r->name) {
        r->request->param = arena_strdup(&r->request->arena, r->name);
        status = status_prefix(status, "%.100s", r->name);
    }
    arena_deinit(&r->body);
    return status;
}

static Status read_request(Reading *r, Str body)
{
    JsonValue value;
    TRY(parse_body(r, body, &value));
    TRY(read_fields(r, &value));
    TRY(settle(r));
    TRY(r->request->route == API_CHAT ? encode_chat_prompt(r) : encode_prompts(r));
    return check_size(r);
}

Status api_read(const ApiModel *model, int route, Str body, ApiRequest *out)
{
    Reading r = {.model = model, .request = out};
    init_request(route, out);
    return end_reading(&r, read_request(&r, body));
}

void api_request_deinit(ApiRequest *q)
{
    token_ids_deinit(&q->ids);
    arena_deinit(&q->arena);
    *q = (ApiRequest){0};
}

/* ---- tokens ---- */

static Status read_tokenize(Reading *r, Str body)
{
    JsonValue value;
    TRY(parse_body(r, body, &value));
    TRY(read_fields(r, &value));
    TRY(settle_tools(r));
    r->name = NULL;
    FAIL_IF(!r->prompt == !r->messages, ERR_INVALID, "expected either prompt, a text, or messages");
    r->name = "add_special_tokens";
    FAIL_IF(r->messages && r->has_special, ERR_INVALID, "it goes with prompt: the chat template says which tokens messages get");
    if (r->messages) return encode_chat(r);
    r->name = r->tools ? "tools" : r->tool_choice ? "tool_choice" : "chat_template_kwargs";
    FAIL_IF(r->tools || r->tool_choice || r->variables, ERR_INVALID, "it goes with messages, not with prompt");
    r->name = "prompt";
    TRY(want(r->prompt, JSON_STRING, "a text"));
    return add_text(r, r->prompt->string, !r->has_special || r->adds_special);
}

Status api_read_tokenize(const ApiModel *model, Str body, ApiRequest *out)
{
    Reading r = {.model = model, .request = out};
    init_request(API_TOKENS, out);
    return end_reading(&r, read_tokenize(&r, body));
}

static Status read_detokenize(Reading *r, Str body)
{
    JsonValue value;
    TRY(parse_body(r, body, &value));
    TRY(read_fields(r, &value));
    r->name = "tokens";
    FAIL_IF(!r->tokens, ERR_INVALID, "it is missing; expected a list of token ids");
    return add_ids(r, r->tokens);
}

Status api_read_detokenize(const ApiModel *model, Str body, ApiRequest *out)
{
    Reading r = {.model = model, .request = out};
    init_request(API_IDS, out);
    return end_reading(&r, read_detokenize(&r, body));
}
