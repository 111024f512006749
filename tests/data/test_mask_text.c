/* For every template and tokenizer: the trained text is the contents of the answers, as rendered, and their stops. */
#include "data/mask.h"
#include "data_util.h"

#include <time.h>

/* A built-in template, a template of ../shared (a file, or a case of a list of cases), or the text in `data`. */
typedef struct Given {
    const char *name, *data;
    const char *eos, *stop; /* stop: the text that ends an answer */
    const char *markers;    /* the template's tokens, separated by spaces */
    const char *last_lead;  /* text before the last answer's content */
    const char *last_stop;  /* text that ends the last answer; NULL: `stop` */
    bool        by_token;   /* the stop is found only if the markers are special tokens */
} Given;

static const char chatml[] = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
                             "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
static const char marked[] = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
                             "{{ m.content }}{% endgeneration %}<|im_end|>\n{% else %}{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}";
static const char roles_only[] =
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}";
static const char counts[] =
    "{% for m in messages %}{% if loop.last %}<|last|>{% endif %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/* The last answer ends with another token than the answers before it. */
static const char returns[] = "<|im_start|>system\nbe<|im_end|>{% for m in messages %}<|im_start|>{{ m.role }}<|sep|>{{ m.content }}{{ "
                              "'<|return|>' if loop.last else '<|im_end|>' }}"
                              "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant<|sep|>{% endif %}";
/* Each message begins with a marker; EOS ends the whole conversation. */
static const char ends_once[] = "{% for m in messages %}<|sep|>{{ m.role }}\n{{ m.content }}\n{% endfor %}{% if add_generation_prompt "
                                "%}<|sep|>assistant\n{% else %}</s>{% endif %}";
static const char ends_between[] =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ '</s>' if m.role == 'assistant' and not loop.last }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";

#define IM "<|im_start|> <|im_end|>"
#define R1 \
    "<\xEF\xBD\x9CUser\xEF\xBD\x9C> <\xEF\xBD\x9C" \
    "Assistant\xEF\xBD\x9C> <\xEF\xBD\x9C" \
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"
#define R1_END \
    "<\xEF\xBD\x9C" \
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"
static const Given templates[] = {
    {"chatml", chatml, "<|im_end|>", "<|im_end|>", IM, "", NULL, false},
    {"chatml, another eos", chatml, "</s>", "<|im_end|>", IM " </s>", "", NULL, false},
    {"marked", marked, "<|im_end|>", "<|im_end|>", IM, "", NULL, false},
    {"marked, another eos", marked, "</s>", "<|im_end|>", IM " </s>", "", NULL, false},
    {"roles only", roles_only, "</s>", "", "<|user|> <|assistant|> </s>", "", NULL, false},
    {"prefixes change", counts, "</s>", "<|im_end|>", IM " </s>", "", NULL, false},
    {"another end", returns, "<|return|>", "<|im_end|>", IM " <|sep|> <|return|>", "", "<|return|>", true},
    {"an end once", ends_once, "</s>", "", "<|sep|> </s>", "", "\n</s>", false},
    {"ends between", ends_between, "</s>", "</s>", "<|user|> <|assistant|> </s>", "", "", true},
    {"llama3", NULL, "<|eot_id|>", "<|eot_id|>", "<|start_header_id|> <|end_header_id|> <|eot_id|>", "", NULL, false},
    {"llama3", NULL, "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|> <|end_header_id|> <|eot_id|> <|end_of_text|>", "", NULL, false},
    {"mistral_v1", NULL, "</s>", "</s>", "</s>", "", NULL, false},
    {"mistral", NULL, "</s>", "</s>", "[INST] [/INST] </s>", "", NULL, false},
    {"mistral_v3_tekken", NULL, "</s>", "</s>", "[INST] [/INST] </s>", "", NULL, false},
    {"mistral_v7_tekken", NULL, "</s>", "</s>", "[INST] [/INST] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] </s>", "", NULL, false},
    {"gemma", NULL, "<eos>", "<end_of_turn>", "<start_of_turn> <end_of_turn> <eos>", "", NULL, false},
    {"phi3", NULL, "<|endoftext|>", "<|end|>", "<|user|> <|assistant|> <|system|> <|end|> <|endoftext|>", "", NULL, false},
    {"phi4", NULL, "<|im_end|>", "<|im_end|>", IM " <|im_sep|>", "", NULL, false},
    {"phi4_mini", NULL, "<|endoftext|>", "<|end|>", "<|user|> <|assistant|> <|system|> <|end|> <|endoftext|>", "", NULL, false},
    {"qwen2.5", NULL, "<|im_end|>", "<|im_end|>", IM, "", NULL, false},
    {"qwen3", NULL, "<|im_end|>", "<|im_end|>", IM, "<think>\n\n</think>\n\n", NULL, false},
    {"qwen3_nothink", NULL, "<|im_end|>", "<|im_end|>", IM, "", NULL, false},
    {"olmo2", NULL, "<|endoftext|>", "<|endoftext|>", "<|endoftext|>", "", NULL, false},
    {"smollm2", NULL, "<|im_end|>", "<|im_end|>", IM, "", NULL, false},
    {"granite3", NULL, "<|end_of_text|>", "<|end_of_text|>", "<|start_of_role|> <|end_of_role|> <|end_of_text|>", "", NULL, false},
    {"deepseek3", NULL, R1_END, R1_END, R1, "", NULL, false},
    {"zephyr", NULL, "</s>", "</s>", "</s>", "", NULL, false},
    {"vicuna", NULL, "</s>", "</s>", "</s>", "", NULL, false},
    {"alpaca", NULL, "</s>", "</s>", "</s>", "", NULL, false},
    {"Qwen-Qwen2.5-7B-Instruct", NULL, "<|im_end|>", "<|im_end|>", IM, "", NULL, false},
    {"Qwen-Qwen3-0.6B", NULL, "<|im_end|>", "<|im_end|>", IM, "<think>\n\n</think>\n\n", NULL, false},
    {"Qwen-Qwen3-0.6B", NULL, "<|endoftext|>", "<|im_end|>", IM " <|endoftext|>", "<think>\n\n</think>\n\n", NULL, false},
    {"Qwen3-from-tokenizer_config", NULL, "<|im_end|>", "<|im_end|>", IM, "<think>\n\n</think>\n\n", NULL, false},
    {"Qwen3.5-4B", NULL, "<|im_end|>", "<|im_end|>", IM, "</think>\n\n", NULL, false}, /* its generation prompt contains <think> */
    {"Qwen-QwQ-32B", NULL, "<|im_end|>", "<|im_end|>", IM, "", NULL, false},
    {"HuggingFaceTB-SmolLM3-3B", NULL, "<|im_end|>", "<|im_end|>", IM, "", NULL, false},
    {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", NULL, R1_END, R1_END, R1, "", NULL, false},
    {"google-gemma-2-2b-it", NULL, "<eos>", "<end_of_turn>", "<start_of_turn> <end_of_turn> <eos>", "", NULL, false},
    {"meta-llama-Llama-3.2-3B-Instruct", NULL, "<|eot_id|>", "<|eot_id|>", "<|start_header_id|> <|end_header_id|> <|eot_id|>", "", NULL,
     false},
    {"microsoft-Phi-3.5-mini-instruct", NULL, "<|endoftext|>", "<|end|>", "<|user|> <|assistant|> <|end|> <|endoftext|>", "", NULL, false},
    {"mistralai-Mistral-Nemo-Instruct-2407", NULL, "</s>", "</s>", "[INST] [/INST] </s>", "", NULL, false},
    {"teknium/OpenHermes-2.5-Mistral-7B", NULL, "<|im_end|>", "<|im_end|>", IM, "", NULL, false},
    {"bofenghuang/vigogne-2-70b-chat", NULL, "</s>", " </s>", "</s>", "", NULL, false},
    {"openchat/openchat-3.5-0106", NULL, "<|end_of_turn|>", "<|end_of_turn|>", "<|end_of_turn|>", "", NULL, false},
    {"eachadea/vicuna-13b-1.1", NULL, "</s>", "</s>", "</s>", "", NULL, false},
    {"CohereForAI/c4ai-command-r-plus", NULL, "<|END_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>",
     "<|START_OF_TURN_TOKEN|> <|END_OF_TURN_TOKEN|> <|USER_TOKEN|> <|CHATBOT_TOKEN|>", "", NULL, false},
    {"Phi-3-small", NULL, "<|endoftext|>", "<|end|>", "<|user|> <|assistant|> <|end|> <|endoftext|>", "", NULL, false},
    {"ChatGLM3", NULL, "</s>", "", "<|user|> <|assistant|> </s>", "", NULL, false},
    {"GLMEdge", NULL, "<|endoftext|>", "", "<|user|> <|assistant|> <|endoftext|>", "", NULL, false},
    {"DeepSeek-V2", NULL, R1_END, R1_END, R1_END, "", NULL, false},
    {"mistralai/Mistral-7B-Instruct-v0.2 (mistralai 'v1' template with a system prompt)", NULL, "</s>", "</s>", "</s>", "", NULL, false},
    {"Mistral-Nemo-Instruct-2407 (mistralai 'v3-tekken' template; modified to have system prompt at start)", NULL, "</s>", "</s>",
     "[INST] [/INST] </s>", "", NULL, false},
    {"Infinigence/Megrez-3B-Instruct", NULL, "<|turn_end|>", "<|turn_end|>", "<|role_start|> <|role_end|> <|turn_end|>", "", NULL, false},
    {"inclusionAI/Ling-lite", NULL, "<|endoftext|>", "", "<role> </role> <|endoftext|>", "", NULL, false},
    {"ibm-granite/granite-3.x (tool call)", NULL, "<|end_of_text|>", "<|end_of_text|>", "<|start_of_role|> <|end_of_role|> <|end_of_text|>",
     "", NULL, false},
    {"Phi4ChatTemplate (phi-4-base)", NULL, "<|im_end|>", "<|im_end|>", IM " <|im_sep|>", "", NULL, false},
    {"Phi3MiniChatTemplate (phi-3-mini)", NULL, "<|endoftext|>", "<|end|>", "<|user|> <|assistant|> <|end|> <|endoftext|>", "", NULL,
     false},
};
enum { NUM_TEMPLATES = sizeof templates / sizeof templates[0] };

/* Byte-level tokenizers, without NFC and with it; then SentencePiece-style ones, whose `Prepend` puts a blank first. */
static const struct {
    const char *path;
    bool        has_nfc, has_prefix;
} tokenizers[] = {
    {"tokenizers/minimind/tokenizer.json", false, false},
    {"tokenizers/minimind/tokenizer.json", true, false},
    {"tokenizers/phi-3/tokenizer.json", false, true},
    {"models/stories260K/hf/tokenizer.json", false, true},
};
enum { NUM_TOKENIZERS = sizeof tokenizers / sizeof tokenizers[0] };

/* How the vocabulary holds the template's markers. */
typedef enum Markers { SPECIAL, ADDED, ABSENT, NUM_MARKERS } Markers;

/* Answers, each with its NFC form. */
static const char *const answers[][2] = {
    {"hello", "hello"},
    {" led by blanks", " led by blanks"},
    {"ends so \n", "ends so \n"},
    {"\n\nlines\n\nwithin", "\n\nlines\n\nwithin"},
    {"caf\xC3\xA9 e\xCC\x81", "caf\xC3\xA9 \xC3\xA9"},
    {"\xEF\xA8\x8C and \xEF\xA8\x8C", "\xE5\x85\x80 and \xE5\x85\x80"},
    {"\xF0\x9F\x99\x82 \xE4\xB8\xAD", "\xF0\x9F\x99\x82 \xE4\xB8\xAD"},
    {"a  b   c", "a  b   c"},
    {"x", "x"},
    {"tail\xEF\xA8\x8C", "tail\xE5\x85\x80"},
    {"Q", "Q"},
    {"the X", "the X"},
};
enum { NUM_ANSWERS = sizeof answers / sizeof answers[0] };

typedef struct Kit {
    Tokenizer  *tokenizer;
    Template   *tmpl;
    MaskRules  *rules;
    MaskEncoder encoder;
    Arena       arena;
} Kit;

static Str read_text(Arena *arena, const char *name)
{
    Str text;
    EXPECT_OK(file_read(arena, arena_printf(arena, "%s/data/%s", test_shared_dir(), name), 1 << 24, &text));
    return text;
}

/* The template's source. */
static Str source_of(Arena *arena, const Given *given)
{
    static const char *const lists[] = {"chat/cases_llama_cpp.json", "chat/cases_onnxruntime.json"};
    if (given->data) return str_of(given->data);
    if (template_builtin(given->name).data) return template_builtin(given->name);
    for (size_t i = 0; i < 2; i++) {
        Str       text = read_text(arena, lists[i]);
        JsonValue cases;
        EXPECT_OK(json_parse(arena, lists[i], text.data, text.len, &cases));
        for (uint32_t c = 0; c < cases.count; c++)
            if (str_equal(json_get(&cases.items[c], "name")->string, given->name)) return json_get(&cases.items[c], "template")->string;
    }
    return read_text(arena, arena_printf(arena, "chat/templates/%s.jinja", given->name));
}

/* The tokenizer's file with NFC, and with these tokens added before its own added tokens. */
static Str with_markers(Arena *arena, size_t k, const char *markers, Markers how)
{
    const char *path = tokenizers[k].path;
    Str         file = read_text(arena, path), name = str_of("\"added_tokens\""), none = str_of("\"normalizer\": null");
    StrBuf      out = {0};
    int32_t     id = 40000; /* larger than any id of the vocabularies */
    const char *at = strchr(str_search(file, name), '[') + 1;
    strbuf_append(&out, file.data, (size_t)(at - file.data));
    char *list = arena_strdup(arena, markers), *rest = NULL;
    for (char *marker = strtok_r(list, " ", &rest); marker && how != ABSENT; marker = strtok_r(NULL, " ", &rest))
        strbuf_printf(&out,
                      "{\"id\": %d, \"content\": \"%s\", \"special\": %s, \"normalized\": %s, \"single_word\": false, \"lstrip\": false, "
                      "\"rstrip\": false}, ",
                      id++, marker, how == SPECIAL ? "true" : "false", how == ADDED && !tokenizers[k].has_prefix ? "true" : "false");
    const char *normalizer = str_search(file, none);
    if (tokenizers[k].has_nfc) {
        strbuf_append(&out, at, (size_t)(normalizer - at));
        strbuf_puts(&out, "\"normalizer\":{\"type\":\"NFC\"}");
        at = normalizer + none.len;
    }
    strbuf_append(&out, at, (size_t)(file.data + file.len - at));
    Str whole = {arena_strndup(arena, out.data, out.len), out.len};
    strbuf_deinit(&out);
    return whole;
}

static Kit kit_open(const Given *given, size_t tokenizer, Markers how)
{
    Kit         kit = {0};
    const char *dir = scratch_dir();
    Str         source = source_of(&kit.arena, given), file = with_markers(&kit.arena, tokenizer, given->markers, how);
    char       *config = arena_printf(&kit.arena, "{\"eos_token\": \"%s\"}", given->eos);
    EXPECT_OK(file_write_atomic(path_in(dir, "tokenizer.json"), file.data, file.len));
    EXPECT_OK(file_write_atomic(path_in(dir, "tokenizer_config.json"), config, strlen(config)));
    EXPECT_OK(tokenizer_load(dir, &kit.tokenizer));
    EXPECT_OK(template_parse(given->name, source.data, source.len, &kit.tmpl));
    EXPECT_OK(template_use_folder(kit.tmpl, dir));
    EXPECT_OK(file_remove_tree(dir));
    EXPECT_OK(mask_rules_create(kit.tokenizer, kit.tmpl, TRAIN_ON_ASSISTANT, &kit.rules));
    mask_encoder_init(&kit.encoder, kit.rules);
    return kit;
}

static void kit_close(Kit *kit)
{
    mask_encoder_deinit(&kit->encoder);
    mask_rules_destroy(kit->rules);
    template_destroy(kit->tmpl);
    tokenizer_destroy(kit->tokenizer);
    arena_deinit(&kit->arena);
}

static void add_message(StrBuf *row, const char *role, const char *content)
{
    strbuf_puts(row, row->len ? ", " : "{\"messages\": [");
    strbuf_printf(row, "{\"role\": \"%s\", \"content\": ", role);
    json_write_string(row, content, strlen(content));
    strbuf_puts(row, "}");
}

static Status encode_row(Kit *kit, const char *row_json)
{
    JsonValue     *row = arena_new(&kit->arena, JsonValue);
    DatasetOptions options = {.type = DATASET_CONVERSATION};
    RowFormat      format;
    Sample         sample;
    EXPECT_OK(json_parse(&kit->arena, "row", row_json, strlen(row_json), row));
    TRY(format_detect(&options, row, &format));
    TRY(format_row(&kit->arena, &options, &format, row, mask_rules_traits(kit->rules), &sample));
    return mask_encode(&kit->encoder, &kit->arena, &sample);
}

/* Decodes tokens. SentencePiece decodes the mark within R1's end token to blanks; this function restores the mark. */
static Str decoded(Kit *kit, size_t begin, size_t end)
{
    static const char blank[] = "end of sentence", mark[] = "end\xE2\x96\x81of\xE2\x96\x81sentence";
    StrBuf            text = {0}, out = {0};
    EXPECT_OK(tokenizer_decode(kit->tokenizer, kit->encoder.ids.data + begin, end - begin, false, &text));
    const char *at = strbuf_cstr(&text), *found;
    for (; (found = strstr(at, blank)); at = found + strlen(blank)) {
        strbuf_append(&out, at, (size_t)(found - at));
        strbuf_puts(&out, mark);
    }
    strbuf_puts(&out, at);
    Str copy = {arena_strndup(&kit->arena, strbuf_cstr(&out), out.len), out.len};
    strbuf_deinit(&text);
    strbuf_deinit(&out);
    return copy;
}

/* The text of the next run of trained tokens, from *at on; len 0: there is none. */
static Str next_run(Kit *kit, size_t *at, size_t *out_last_len)
{
    const MaskEncoder *encoder = &kit->encoder;
    while (*at < encoder->ids.len && !encoder->mask[*at]) ++*at;
    size_t begin = *at;
    while (*at < encoder->ids.len && encoder->mask[*at]) ++*at;
    *out_last_len = *at > begin ? decoded(kit, *at - 1, *at).len : 0;
    return decoded(kit, begin, *at);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n';
}

static Str trimmed(Str text)
{
    while (text.len > 0 && is_blank(text.data[0])) text = (Str){text.data + 1, text.len - 1};
    while (text.len > 0 && is_blank(text.data[text.len - 1])) text.len--;
    return text;
}

/* Whether `text` is the content. Some templates trim it; blanks at the end of the text must belong to the content. */
static bool is_content(Str text, const char *content)
{
    Str  want = trimmed(str_of(content)), got = trimmed(text);
    bool has_blanks = text.len > 0 && is_blank(text.data[text.len - 1]), may_have = is_blank(content[strlen(content) - 1]);
    return got.len == want.len && memcmp(got.data, want.data, want.len) == 0 && (may_have || !has_blanks);
}

/* Whether `run` is lead + content + stop, perhaps followed by part of the last token, which may also hold text after the stop. */
static bool is_answer(Str run, size_t last_len, const char *lead, const char *content, const char *stop)
{
    size_t lead_len = strlen(lead), stop_len = strlen(stop);
    while (run.len > 0 && is_blank(run.data[0])) run = (Str){run.data + 1, run.len - 1};
    for (size_t extra = 0; extra == 0 || extra < last_len; extra++) {
        if (run.len < lead_len + stop_len + extra || memcmp(run.data, lead, lead_len) != 0) return false;
        Str  turn = {run.data + lead_len, run.len - lead_len - extra};
        bool is_same = is_content((Str){turn.data, turn.len - stop_len}, content);
        if (is_same && memcmp(turn.data + turn.len - stop_len, stop, stop_len) == 0) return true;
    }
    return false;
}

/* Checks conversation number n, whose answers are taken from `answers`, the first one at n. */
static void check_talk(Kit *kit, const Given *given, bool has_nfc, const char *where, uint32_t n)
{
    StrBuf   row = {0};
    uint32_t turns = 1 + n % 3;
    size_t   at = 0, last_len;
    for (uint32_t i = 0; i < turns; i++) {
        add_message(&row, "user", i % 2 ? "more of it\n" : "question");
        add_message(&row, "assistant", answers[(n + i * 5) % NUM_ANSWERS][0]);
    }
    strbuf_puts(&row, "]}");
    Status status = encode_row(kit, row.data);
    if (status != OK) test_fail(__FILE__, __LINE__, "%s: %s: %s", where, row.data, status_message());
    for (uint32_t i = 0; status == OK && i < turns; i++) {
        Str  run = next_run(kit, &at, &last_len);
        bool is_last = i + 1 == turns;
        if (!is_answer(run, last_len, is_last ? given->last_lead : "", answers[(n + i * 5) % NUM_ANSWERS][has_nfc],
                       is_last && given->last_stop ? given->last_stop : given->stop))
            test_fail(__FILE__, __LINE__, "%s: answer %u of %s: trained [[%s]]", where, i + 1, row.data, run.data);
    }
    if (status == OK) EXPECT_INT(next_run(kit, &at, &last_len).len, 0);
    strbuf_deinit(&row);
}

static void contents_and_stops_are_trained(void)
{
    if (!test_shared_dir()) SKIP("no ../shared");
    for (size_t t = 0; t < NUM_TEMPLATES; t++)
        for (size_t k = 0; k < NUM_TOKENIZERS * NUM_MARKERS; k++) {
            char    where[400];
            Markers how = (Markers)(k % NUM_MARKERS);
            size_t  tokenizer = k / NUM_MARKERS;
            if (how != SPECIAL && (tokenizer == 2 || templates[t].by_token)) continue; /* tokenizer 2 is large: it is tested once */
            Kit kit = kit_open(&templates[t], tokenizer, how);
            snprintf(where, sizeof where, "%s, %s (%d), markers %d", templates[t].name, tokenizers[tokenizer].path,
                     tokenizers[tokenizer].has_nfc, how);
            for (uint32_t n = 0; n < NUM_ANSWERS * 3; n++) check_talk(&kit, &templates[t], tokenizers[tokenizer].has_nfc, where, n);
            mask_rules_forbid_shortcuts(kit.rules); /* the general way, without shortcuts, gives the same */
            for (uint32_t n = 0; n < NUM_ANSWERS; n++) check_talk(&kit, &templates[t], tokenizers[tokenizer].has_nfc, where, n);
            kit_close(&kit);
        }
}

#define SAID(role, content) "{\"role\": \"" role "\", \"content\": \"" content "\"}"
/* ---- talks with tools ---- */

/* Forms of templates that are hard to mask: the trained text of each conversation, '|' between turns. */
#define FOR_EACH "{%- for m in messages -%}"
#define END "{%- endfor -%}"
#define CALL "{%- if m.tool_calls -%}[call {{ m.tool_calls[0].function.name }}]{%- endif -%}"
#define USER "{%- if m.role == 'user' -%}<|im_start|>user {{ m.content }}<|im_end|>"
#define ASKS "{%- if add_generation_prompt -%}<|im_start|>model{%- endif -%}"
static const char looks_ahead[] = FOR_EACH USER
    "{%- elif m.role == 'assistant' -%}<|im_start|>model" CALL
    "{%- if m.tool_calls -%}{%- for n in messages[loop.index:] if n.role == 'tool' -%}[result {{ n.content }}]{%- endfor -%}{%- endif -%}"
    "{{ m.content }}<|im_end|>{%- endif -%}" END ASKS;
/* A turn continues after the results of its calls, and is closed once. */
static const char                                     goes_on[] =
    "{%- set ns = namespace(open=false) -%}" FOR_EACH USER
    "{%- elif m.role == 'assistant' -%}{%- if not ns.open -%}<|im_start|>model{%- endif -%}" CALL "{%- set ns.open = false -%}"
    "{%- for n in messages[loop.index:] if m.tool_calls and n.role == 'tool' -%}{%- set ns.open = true -%}<result>{{ n.content }}</result>"
    "{%- endfor -%}{{ m.content }}{%- if not ns.open -%}<|im_end|>{%- endif -%}{%- endif -%}" END ASKS;
/* The generation prompt opens and closes thinking; a turn in the conversation only closes it. */
static const char closes_thinking[] = FOR_EACH
    "{%- if m.role == 'user' -%}<|im_start|>user {{ m.content }}<|im_end|>{%- elif m.role == 'tool' -%}<|sep|>{{ m.content }}<|im_end|>"
    "{%- else -%}<|im_start|>model</think>{{ m.content }}" CALL "<|im_end|>{%- endif -%}" END
    "{%- if add_generation_prompt -%}<|im_start|>model<think></think>{%- endif -%}";
/* Always prints a generation prompt, which is longer than the header of a turn. */
static const char prompts_always[] =
    FOR_EACH "<|im_start|>{{ m.role }}\n\n{{ m.content }}" CALL "<|im_end|>" END "<|im_start|>assistant\nto user\n\n";
/* As prompts_always, but answers are put between tags, and so are calls. */
static const char tags_answers[] = FOR_EACH
    "{%- if m.role == 'assistant' -%}<|im_start|>model<|sep|>{%- if m.tool_calls -%}<|begin_call|>{{ m.tool_calls[0].function.name }}"
    "<|end_call|>{%- else -%}<|begin_text|>{{ m.content }}<|end_text|>{%- endif -%}<|im_end|>{%- else -%}<|im_start|>{{ m.role }}"
    "<|sep|>{{ m.content }}<|im_end|>{%- endif -%}" END "<|im_start|>model<|sep|>";
/* The turn of results is closed only when another message follows, and results need a call before them. */
static const char closes_late[] =
    "{%- set ns = namespace(called=false) -%}" FOR_EACH
    "{%- if m.role == 'tool' -%}{%- if not ns.called -%}{{ raise_exception('no call') }}{%- endif -%}"
    "{%- if loop.previtem.role != 'tool' -%}<|im_start|>tool{%- endif -%}<r>{{ m.content }}</r>"
    "{%- if not loop.last and loop.nextitem.role != 'tool' -%}<|im_end|>{%- endif -%}"
    "{%- elif m.role == 'assistant' -%}{%- set ns.called = m.tool_calls -%}<|im_start|>model\n{{ m.content }}" CALL "<|im_end|>"
    "{%- else -%}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{%- endif -%}" END
    "{%- if add_generation_prompt -%}<|im_start|>model\n<think>\n{%- endif -%}";
/* A template without a generation prompt. */
static const char never_prompts[] = FOR_EACH "<|im_start|>{{ m.role }}:{{ m.content }}" CALL "<|im_end|>" END;
/* A template that lists the tools after the last message. */
static const char lists_last[] =
    FOR_EACH "<|sep|>{{ m.role }}:{{ m.content }}" CALL "!" END
             "{%- if add_generation_prompt -%}<|sep|>assistant:{%- elif tools -%}<|sep|>{{ tools[0].function.description }}{%- endif -%}";

/* The generation prompt opens thinking, which only the last answer has; EOS ends texts without a prompt. */
static const char thinks_last[] = FOR_EACH
    "{%- if m.role == 'assistant' -%}<|im_start|>model{%- if m.reasoning_content and loop.last -%}<think>{{ m.reasoning_content }}</think>"
    "{%- endif -%}{{ m.content }}" CALL "<|im_end|>{%- else -%}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{%- endif -%}" END
    "{%- if add_generation_prompt -%}<|im_start|>model<think>{%- else -%}<|sep|>{%- endif -%}";

#define CALLED(content) \
    "{\"role\": \"assistant\", \"content\": \"" content \
    "\", \"tool_calls\": [{\"id\": \"c00000001\", \"type\": \"function\", \"function\": " \
    "{\"name\": \"look\", \"arguments\": {\"at\": \"wharg\"}}}]}"
#define RESULT(content) "{\"role\": \"tool\", \"name\": \"look\", \"tool_call_id\": \"c00000001\", \"content\": \"" content "\"}"
#define THOUGHT(content, thought) "{\"role\": \"assistant\", \"content\": \"" content "\", \"reasoning_content\": \"" thought "\"}"
#define TALK(...) "{\"messages\": [" __VA_ARGS__ "]"
#define TOOLS \
    ", \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"look\", \"description\": \"whdesc\", \"parameters\": {\"type\": " \
    "\"object\", \"properties\": {\"at\": {\"type\": \"string\", \"description\": \"place\"}}, \"required\": [\"at\"]}}}]}"
static const char *const talks[] = {
    TALK(SAID("user", "whuser1") ", " SAID("assistant", "own1") ", " SAID("user", "whuser2") ", " SAID("assistant", "own2")) "}",
    TALK(SAID("user", "whuser1") ", " CALLED("") ", " RESULT("whtool1") ", " SAID("assistant", "own2")) TOOLS,
    TALK(SAID("user", "whuser1") ", " CALLED("own1") ", " RESULT("whtool1") ", " SAID("assistant", "own2") ", " SAID(
        "user", "whuser2") ", " SAID("assistant", "own3")) TOOLS,
    TALK(SAID("user", "whuser1") ", " CALLED("own1") ", " RESULT("whtool1")) TOOLS,
    TALK(SAID("user", "whuser1") ", " CALLED("") ", " RESULT("whtool1") ", " CALLED("") ", " RESULT("whtool2") ", " SAID("assistant",
                                                                                                                         "own3")) "}",
    TALK(SAID("system", "whsys") ", " SAID("user", "whuser1") ", " THOUGHT("own1", "ownthought") ", " SAID("user", "whuser2") ", " THOUGHT(
        "own2", "ownthought")) "}",
    /* an answer may quote the words of a question */
    TALK(SAID("user", "whuser1") ", " CALLED("so: whtool1") ", " RESULT("whtool1") ", " SAID("assistant", "own2 whtool1")) TOOLS,
};
enum { NUM_TALKS = sizeof talks / sizeof talks[0], QUOTING = NUM_TALKS - 1 };

/* Special tokens of these forms: IM, <|sep|> and the markers of tags_answers. */
#define SHAPE(source, prefix) \
    { \
#source, source, "<|im_end|>", "<|im_end|>", IM " <|sep|> " prefix, "", NULL, false \
    }
static const Given shapes[] = {
    SHAPE(looks_ahead, ""),
    SHAPE(goes_on, ""),
    SHAPE(closes_thinking, ""),
    SHAPE(prompts_always, ""),
    SHAPE(tags_answers, "<|begin_call|> <|end_call|> <|begin_text|> <|end_text|>"),
    SHAPE(closes_late, ""),
    SHAPE(never_prompts, ""),
    SHAPE(lists_last, ""),
    SHAPE(thinks_last, ""),
};
enum { NUM_SHAPES = sizeof shapes / sizeof shapes[0] };

#define E "<|im_end|>"
#define W "<|begin_text|>"
#define X "<|end_text|>" E
#define Y "<|begin_call|>look<|end_call|>" E
static const char *const trained[NUM_SHAPES][NUM_TALKS] = {
    {"own1" E "|own2" E, "[call look]|" E "|own2" E, "[call look]|own1" E "|own2" E "|own3" E, "[call look]|own1" E,
     "[call look]|" E "|[call look]|" E "|own3" E, "own1" E "|own2" E, "[call look]|so: whtool1" E "|own2 whtool1" E},
    {"own1" E "|own2" E, "[call look]|own2" E, "[call look]|own1own2" E "|own3" E, "[call look]|own1", NULL, "own1" E "|own2" E,
     "[call look]|so: whtool1own2 whtool1" E},
    {"own1" E "|own2" E, "[call look]" E "|own2" E, "own1[call look]" E "|own2" E "|own3" E, "own1[call look]" E,
     "[call look]" E "|[call look]" E "|own3" E, "own1" E "|own2" E, "so: whtool1[call look]" E "|own2 whtool1" E},
    {"own1" E "|own2" E, "[call look]" E "|own2" E, "own1[call look]" E "|own2" E "|own3" E, "own1[call look]" E,
     "[call look]" E "|[call look]" E "|own3" E, "own1" E "|own2" E, "so: whtool1[call look]" E "|own2 whtool1" E},
    {W "own1" X "|" W "own2" X, Y "|" W "own2" X, Y "|" W "own2" X "|" W "own3" X, Y, Y "|" Y "|" W "own3" X, W "own1" X "|" W "own2" X,
     Y "|" W "own2 whtool1" X},
    {"own1" E "|own2" E, "[call look]" E "|own2" E, "own1[call look]" E "|own2" E "|own3" E, "own1[call look]" E,
     "[call look]" E "|[call look]" E "|own3" E, "own1" E "|own2" E, "so: whtool1[call look]" E "|own2 whtool1" E},
    {"own1" E "|own2" E, "[call look]" E "|own2" E, "own1[call look]" E "|own2" E "|own3" E, "own1[call look]" E,
     "[call look]" E "|[call look]" E "|own3" E, "own1" E "|own2" E, "so: whtool1[call look]" E "|own2 whtool1" E},
    {"own1!|own2!", "[call look]!|own2!", "own1[call look]!|own2!|own3!", "own1[call look]!", "[call look]!|[call look]!|own3!",
     "own1!|own2!", "so: whtool1[call look]!|own2 whtool1!"},
    {"own1" E "|own2" E, "[call look]" E "|own2" E, "own1[call look]" E "|own2" E "|own3" E, "own1[call look]" E,
     "[call look]" E "|[call look]" E "|own3" E, "own1" E "|ownthought</think>own2" E, "so: whtool1[call look]" E "|own2 whtool1" E},
};
#undef E
#undef W
#undef X
#undef Y

/* All trained text; '|' separates runs. */
static const char *all_trained(Kit *kit)
{
    StrBuf out = {0};
    size_t at = 0, last_len;
    for (Str run; (run = next_run(kit, &at, &last_len)).len > 0;) {
        if (out.len) strbuf_putc(&out, '|');
        strbuf_append(&out, run.data, run.len);
    }
    const char *copy = arena_strndup(&kit->arena, strbuf_cstr(&out), out.len);
    strbuf_deinit(&out);
    return copy;
}

static void shapes_train_what_is_their_own(void)
{
    if (!test_shared_dir()) SKIP("no ../shared");
    for (size_t i = 0; i < 2 * NUM_SHAPES; i++) {
        Kit kit = kit_open(&shapes[i / 2], 0, SPECIAL);
        if (i % 2) mask_rules_forbid_shortcuts(kit.rules);
        for (size_t k = 0; k < NUM_TALKS; k++) {
            const char *want = trained[i / 2][k];
            if (encode_row(&kit, talks[k]) != OK)
                test_fail(__FILE__, __LINE__, "%s: talk %zu: %s", shapes[i / 2].name, k, status_message());
            else if (want && strcmp(all_trained(&kit), want) != 0)
                test_fail(__FILE__, __LINE__, "%s: talk %zu: trained [[%s]], not [[%s]]", shapes[i / 2].name, k, all_trained(&kit), want);
        }
        kit_close(&kit);
    }
}

/* For every template and conversation: nothing of a question, a result, a system message or a tool's description is trained; every answer
 * that the template prints is. */
static void check_owners(Kit *kit, const char *name, size_t talk)
{
    const char *row = talks[talk];
    char        word[8];
    if (encode_row(kit, row) != OK) {
        bool is_ours = strstr(status_message(), "{% generation %}") != NULL; /* else the template refuses such a talk */
        if (is_ours) test_fail(__FILE__, __LINE__, "%s: talk %zu: %s", name, talk, status_message());
        return;
    }
    static const char *const words[] = {"whuser", "whtool", "whsys", "whdesc"};
    const char              *text = all_trained(kit);
    for (size_t i = 0; i < sizeof words / sizeof words[0] && talk != QUOTING; i++)
        if (strstr(text, words[i])) test_fail(__FILE__, __LINE__, "%s: talk %zu: trained [[%s]]", name, talk, text);
    for (int k = 1; k <= 3; k++) {
        snprintf(word, sizeof word, "own%d", k);
        if (str_search(kit->encoder.text, str_of(word)) && !strstr(text, word))
            test_fail(__FILE__, __LINE__, "%s: talk %zu: %s isn't trained: [[%s]]", name, talk, word, text);
    }
}

/* CPU seconds to encode a conversation of `rounds` rounds with a call. */
static double seconds_for(Kit *kit, int rounds)
{
    StrBuf row = {0};
    strbuf_puts(&row, "{\"messages\": [" SAID("user", "go"));
    for (int i = 0; i < rounds; i++)
        strbuf_puts(&row, ", " CALLED("") ", " RESULT("seen") ", " SAID("assistant", "done") ", " SAID("user", "more"));
    strbuf_puts(&row, "]" TOOLS);
    clock_t begin = clock();
    EXPECT_OK(encode_row(kit, row.data));
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    strbuf_deinit(&row);
    return seconds;
}

static void long_conversations_take_time_in_proportion(void)
{
    if (!test_shared_dir()) SKIP("no ../shared");
    static const char *const names[] = {"Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "Qwen3.5-4B", "meta-llama-Llama-3.2-3B-Instruct"};
    for (size_t i = 0; i < 4; i++) {
        size_t t = 0;
        while (strcmp(templates[t].name, names[i]) != 0) t++;
        Kit    kit = kit_open(&templates[t], 0, SPECIAL);
        double few = seconds_for(&kit, 50), many = seconds_for(&kit, 500);
        if (many > 40 * few + 0.1) test_fail(__FILE__, __LINE__, "%s: %.3f s for 50 rounds, %.3f s for 500", names[i], few, many);
        kit_close(&kit);
    }
}

/* The remaining templates of ../shared. */
static const Given others[] = {
    {"ibm-granite/granite-4.1 (tool call)", NULL, "<|end_of_text|>", "", "<|start_of_role|> <|end_of_role|> <|end_of_text|>", "", NULL,
     false},
    {"Qwen3ChatTemplate (qwen3)", NULL, "<|im_end|>", "", IM, "", NULL, false},
    {"Qwen2_5_ChatTemplateWithMinjaTools (qwen2.5)", NULL, "<|im_end|>", "", IM, "", NULL, false},
};
enum { NUM_OTHERS = sizeof others / sizeof others[0] };

/* Templates of tests/oracle/templates, except the one that sorts messages by role. */
static const char *const odd[] = {"alternating",  "call_blocks", "image_counts",   "layout_by_lines",
                                  "schema_types", "spans",       "thinking_steps", "xml_calls"};

static void odd_templates_train_nothing_else(void)
{
    if (!test_shared_dir()) SKIP("no ../shared");
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) {
        Arena arena = {0};
        Str   source;
        EXPECT_OK(file_read(&arena, arena_printf(&arena, "tests/oracle/templates/%s.jinja", odd[i]), 1 << 20, &source));
        Given given = {odd[i], source.data, "</s>", "", "</s>", "", NULL, false};
        Kit   kit = kit_open(&given, 0, SPECIAL);
        for (size_t k = 0; k < NUM_TALKS; k++) check_owners(&kit, odd[i], k);
        kit_close(&kit);
        arena_deinit(&arena);
    }
}

static void what_others_say_is_never_trained(void)
{
    if (!test_shared_dir()) SKIP("no ../shared");
    for (size_t t = 0; t < NUM_TEMPLATES + NUM_SHAPES + NUM_OTHERS; t++) {
        size_t       rest = t - NUM_TEMPLATES;
        const Given *given = t < NUM_TEMPLATES ? &templates[t] : rest < NUM_SHAPES ? &shapes[rest] : &others[rest - NUM_SHAPES];
        Kit          kit = kit_open(given, 0, SPECIAL);
        for (size_t k = 0; k < NUM_TALKS; k++) check_owners(&kit, given->name, k);
        kit_close(&kit);
    }
}

static const Given *given_of(const char *name, const char *eos)
{
    size_t t = 0;
    while (strcmp(templates[t].name, name) != 0 || strcmp(templates[t].eos, eos) != 0) t++;
    return &templates[t];
}

#define BROKEN "caf\xC3\xA9 \xEF\xA8\x8C" /* NFC changes this text, so its tokens can't be mapped exactly to the text */

/* Templates that rewrite answers, and answers that contain their own stop as text. */
static void rewritten_answers_end_at_their_stop(void)
{
    if (!test_shared_dir()) SKIP("no ../shared");
    static const struct {
        const char *name, *eos, *row, *runs[3];
    } cases[] = {
        {"Qwen-Qwen2.5-7B-Instruct",
         "<|im_end|>",
         "{\"messages\": [" SAID("user", BROKEN) ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"name\": \"look\", "
                                                 "\"arguments\": {\"at\": 1}}]}, " SAID("tool", "seen") ", " SAID("assistant", "that") "]}",
         {"<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": 1}}\n</tool_call><|im_end|>", "that<|im_end|>"}},
        {"Qwen-Qwen3-0.6B",
         "<|endoftext|>",
         "{\"messages\": [" SAID("user", BROKEN) ", " SAID("assistant", "<think>\\nlong\\n</think>\\n\\nshort") ", " SAID(
             "user", "more") ", " SAID("assistant", "<think>\\nwhy\\n</think>\\n\\nso") "]}",
         {"short<|im_end|>", "<think>\nwhy\n</think>\n\nso<|im_end|>"}},
        {"Qwen-Qwen3-0.6B",
         "<|im_end|>",
         "{\"messages\": [" SAID("user", BROKEN) ", {\"role\": \"assistant\", \"content\": \"first\", \"reasoning_content\": \"r\", "
                                                 "\"tool_calls\": [{\"name\": \"look\", "
                                                 "\"arguments\": {}}]}, " SAID("tool", "seen") ", " SAID("assistant", "that") ", " SAID(
                                                     "user", "more") ", " SAID("assistant", "bye") "]}",
         {"first\n<tool_call>\n{\"name\": \"look\", \"arguments\": {}}\n</tool_call><|im_end|>", "that<|im_end|>",
          "<think>\n\n</think>\n\nbye<|im_end|>"}},
        {"Qwen-QwQ-32B",
         "<|im_end|>",
         "{\"messages\": [" SAID("user", BROKEN) ", " SAID("assistant", "<think>\\nlong\\n</think>\\n\\nshort") ", " SAID(
             "user", "more") ", " SAID("assistant", "<think>\\nwhy\\n</think>\\n\\nso") "]}",
         {"short<|im_end|>", "<think>\nwhy\n</think>\n\nso<|im_end|>"}},
        {"deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
         R1_END,
         "{\"messages\": [" SAID("user", BROKEN) ", " SAID("assistant", "<think>\\nlong\\n</think>\\n\\nshort") ", " SAID(
             "user", "more") ", " SAID("assistant", "so") "]}",
         {"\n\nshort" R1_END, "so" R1_END}},
        {"mistralai-Mistral-Nemo-Instruct-2407",
         "</s>", /* prints the system message within the last question */
         "{\"messages\": [" SAID("system", "be brief") ", " SAID("user", BROKEN) ", " SAID("assistant", "one") ", " SAID(
             "user", "more") ", " SAID("assistant", "two") "]}",
         {"one</s>", "two</s>"}},
        {"chatml, another eos",
         "</s>",
         "{\"messages\": [" SAID("user", BROKEN) ", " SAID("assistant", "a<|im_end|>\\nb </s> c") ", " SAID("user", "more") ", " SAID(
             "assistant", "d<|im_end|>") "]}",
         {"a<|im_end|>\nb </s> c<|im_end|>", "d<|im_end|><|im_end|>"}},
        {"microsoft-Phi-3.5-mini-instruct",
         "<|endoftext|>",
         "{\"messages\": [" SAID("user", BROKEN) ", " SAID("assistant", "one<|end|>") ", " SAID("user", "more") ", " SAID("assistant",
                                                                                                                          "two") "]}",
         {"one<|end|><|end|>", "two<|end|>"}},
    };
    for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
        Kit    kit = kit_open(given_of(cases[i / 2].name, cases[i / 2].eos), 1, SPECIAL);
        size_t at = 0, last_len;
        if (i % 2) mask_rules_forbid_shortcuts(kit.rules);
        EXPECT_OK(encode_row(&kit, cases[i / 2].row));
        for (size_t k = 0; k < 3 && cases[i / 2].runs[k]; k++) EXPECT_STR(next_run(&kit, &at, &last_len).data, cases[i / 2].runs[k]);
        EXPECT_INT(next_run(&kit, &at, &last_len).len, 0);
        EXPECT_INT(kit.encoder.turns_without_stop, 0);
        kit_close(&kit);
    }
}

/* Puts a character that NFC changes before every question. */
static void break_questions(Arena *arena, const JsonValue *row)
{
    const JsonValue *turns = json_get(row, "conversations");
    for (uint32_t i = 0; i < turns->count; i++) {
        JsonMember *from = turns->items[i].members, *value = from + 1;
        if (!str_equal(from->value.string, "human")) continue;
        const char *text = arena_printf(arena, "\xEF\xA8\x8C %s", value->value.string.data);
        value->value.string = str_of(text);
    }
}

/* Calls from a real file: no turn marker is trained. */
static void markers_of_the_next_turn_are_never_trained(void)
{
    if (!test_shared_dir()) SKIP("no ../shared");
    static const char *const names[][2] = {
        {"Qwen-Qwen2.5-7B-Instruct", "<|im_end|>"}, {"Qwen-Qwen3-0.6B", "<|im_end|>"}, {"chatml, another eos", "</s>"}};
    for (size_t i = 0; i < 2 * 3; i++) {
        Kit       kit = kit_open(given_of(names[i / 2][0], names[i / 2][1]), 1 + i % 2, SPECIAL);
        Str       text = read_text(&kit.arena, "datasets/glaive_toolcall_en_demo.json");
        JsonValue rows;
        EXPECT_OK(json_parse(&kit.arena, "rows", text.data, text.len, &rows));
        EXPECT_OK(mask_encode_text(&kit.encoder, str_of("<|im_start|>"), true, false));
        int32_t marker = kit.encoder.ids.data[kit.encoder.ids.len - 1];
        for (uint32_t r = 0; r < rows.count; r++) {
            DatasetOptions options = {.type = DATASET_CONVERSATION};
            RowFormat      format;
            Sample         sample;
            break_questions(&kit.arena, &rows.items[r]);
            EXPECT_OK(format_detect(&options, &rows.items[r], &format));
            EXPECT_OK(format_row(&kit.arena, &options, &format, &rows.items[r], mask_rules_traits(kit.rules), &sample));
            EXPECT_OK(mask_encode(&kit.encoder, &kit.arena, &sample));
            size_t num_markers = 0;
            for (size_t k = 0; k < kit.encoder.ids.len; k++) num_markers += kit.encoder.mask[k] && kit.encoder.ids.data[k] == marker;
            EXPECT_INT(num_markers, 0);
            EXPECT_INT(kit.encoder.turns_without_stop, 0);
        }
        EXPECT(rows.count > 200);
        kit_close(&kit);
    }
}

TEST_MAIN(TEST(shapes_train_what_is_their_own), TEST(what_others_say_is_never_trained), TEST(odd_templates_train_nothing_else),
          TEST(long_conversations_take_time_in_proportion), TEST(contents_and_stops_are_trained), TEST(rewritten_answers_end_at_their_stop),
          TEST(markers_of_the_next_turn_are_never_trained))
