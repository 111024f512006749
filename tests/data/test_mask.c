/* Masks: which tokens are trained, compared with published ids; and both ways of finding turns, compared with each other. */
#include "data/mask_turns.h"
#include "data_util.h"

static const char chatml[] = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>' + '\\n' }}{% endfor %}"
                             "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
/* torchtune's layout of Qwen 2: the header of an answer is trained too, and nothing follows the last turn. */
#define TORCHTUNE(header, last) \
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}" header "{{ m.content }}" last \
    "{% endgeneration %}{% else %}" header "{{ m.content }}<|im_end|>\n{% endif %}{% if not loop.last and m.role == 'assistant' %}" \
    "{{ '\\n' }}{% endif %}{% endfor %}"
static const char marked[] = TORCHTUNE("<|im_start|>{{ m.role }}{{ '\\n' }}", "<|im_end|>");
static const char marked_open[] = TORCHTUNE("<|im_start|>{{ m.role }}{{ '\\n' }}", "{{ '<|im_end|>' if not loop.last }}");

typedef struct Kit {
    Tokenizer  *tokenizer;
    Template   *tmpl;
    MaskRules  *rules;
    MaskEncoder encoder;
    Arena       arena;
} Kit;

static Kit kit_open(const char *tokenizer_json, const char *eos, const char *source, TrainOn train_on)
{
    Kit         kit = {0};
    const char *dir = scratch_dir();
    char        config[300];
    snprintf(config, sizeof config, "{\"eos_token\": \"%s\"}", eos);
    test_copy(tokenizer_json, path_in(dir, "tokenizer.json"));
    EXPECT_OK(file_write_atomic(path_in(dir, "tokenizer_config.json"), config, strlen(config)));
    EXPECT_OK(tokenizer_load(dir, &kit.tokenizer));
    EXPECT_OK(file_remove_tree(dir));
    if (source) EXPECT_OK(template_parse("template", source, strlen(source), &kit.tmpl));
    EXPECT_OK(mask_rules_create(kit.tokenizer, kit.tmpl, train_on, &kit.rules));
    mask_encoder_init(&kit.encoder, kit.rules);
    return kit;
}

static void kit_close(Kit *kit)
{
    mask_encoder_deinit(&kit->encoder);
    mask_rules_destroy(kit->rules);
    if (kit->tmpl) template_destroy(kit->tmpl);
    tokenizer_destroy(kit->tokenizer);
    arena_deinit(&kit->arena);
}

static const char *tiny_tokenizer(void)
{
    static char path[4200];
    const char *shared = test_shared_dir();
    if (!shared) return NULL;
    snprintf(path, sizeof path, "%s/data/tokenizers/torchtune-tiny/tiny_bpe_tokenizer.json", shared);
    return path;
}

static Status encode_json(Kit *kit, const char *row_json)
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

/* The trained text; '|' separates turns. */
static const char *trained_text(Kit *kit)
{
    static StrBuf text;
    bool          was = false;
    strbuf_clear(&text);
    for (size_t i = 0; i < kit->encoder.ids.len; i++) {
        if (kit->encoder.mask[i]) {
            if (!was && text.len) strbuf_putc(&text, '|');
            EXPECT_OK(tokenizer_decode(kit->tokenizer, &kit->encoder.ids.data[i], 1, false, &text));
        }
        was = kit->encoder.mask[i];
    }
    return strbuf_cstr(&text);
}

static void published_ids_and_masks(void)
{
    if (!tiny_tokenizer()) SKIP("no ../shared");
    Arena     arena = {0};
    char      path[4300];
    Str       text;
    JsonValue cases;
    snprintf(path, sizeof path, "%s/data/tokenizers/torchtune-tiny/qwen2_messages.json", test_shared_dir());
    EXPECT_OK(file_read(&arena, path, 1 << 20, &text));
    EXPECT_OK(json_parse(&arena, path, text.data, text.len, &cases));
    for (uint32_t c = 0; c < cases.count; c++) {
        const char *name = "";
        json_get_str(&cases.items[c], "name", &name);
        Kit kit = kit_open(tiny_tokenizer(), "<|im_end|>", strstr(name, "drop_eos") ? marked_open : marked, TRAIN_ON_ASSISTANT);
        const JsonValue *want_ids = json_get(&cases.items[c], "expected_tokens"), *want = json_get(&cases.items[c], "expected_mask");
        DatasetOptions   options = {.type = DATASET_CONVERSATION};
        RowFormat        format;
        Sample           sample;
        EXPECT_OK(format_detect(&options, &cases.items[c], &format));
        EXPECT_OK(format_row(&kit.arena, &options, &format, &cases.items[c], mask_rules_traits(kit.rules), &sample));
        sample.train = NULL; /* drops the file's "masked" marks: they equal the default rule */
        EXPECT_OK(mask_encode(&kit.encoder, &kit.arena, &sample));
        EXPECT_INT(kit.encoder.ids.len, want_ids->count);
        for (uint32_t i = 0; i < want_ids->count && i < kit.encoder.ids.len; i++) {
            EXPECT_INT(kit.encoder.ids.data[i], want_ids->items[i].integer);
            EXPECT_INT(kit.encoder.mask[i], !want->items[i].boolean);
        }
        kit_close(&kit);
    }
    EXPECT_INT(cases.count, 2);
    arena_deinit(&arena);
}

#define CHAT \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"hi there\"}, {\"role\": \"assistant\", \"content\": \"hello\"}, " \
    "{\"role\": \"user\", \"content\": \"why\"%s}, {\"role\": \"assistant\", \"content\": \"because\"%s}]}"

static void rules_choose_turns(void)
{
    if (!tiny_tokenizer()) SKIP("no ../shared");
    static const struct {
        TrainOn     train_on;
        const char *user_flag, *last_flag, *want;
    } cases[] = {
        {TRAIN_ON_ASSISTANT, "", "", "hello<|im_end|>|because<|im_end|>"},
        {TRAIN_ON_LAST_TURN, "", "", "because<|im_end|>"},
        {TRAIN_ON_ASSISTANT, "", ", \"train\": false", "hello<|im_end|>"},
        {TRAIN_ON_ASSISTANT, "", ", \"weight\": 0", "hello<|im_end|>"},
        {TRAIN_ON_LAST_TURN, ", \"train\": true", "", "<|im_start|>user\nwhy<|im_end|>|because<|im_end|>"},
        {TRAIN_ON_ALL, "", ", \"loss\": false",
         "<|im_start|>user\nhi there<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n<|im_start|>user\nwhy<|im_end|>\n"
         "<|im_start|>assistant\n|\n"},
        {TRAIN_ON_ALL, ", \"weight\": 0", "",
         "<|im_start|>user\nhi there<|im_end|>\n<|im_start|>assistant\nhello<|im_end|>\n|\n<|im_start|>assistant\nbecause<|im_end|>\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Kit  kit = kit_open(tiny_tokenizer(), "<|im_end|>", chatml, cases[i].train_on);
        char row[600];
        snprintf(row, sizeof row, CHAT, cases[i].user_flag, cases[i].last_flag);
        EXPECT_OK(encode_json(&kit, row));
        EXPECT_STR(trained_text(&kit), cases[i].want);
        EXPECT_INT(kit.encoder.turns_without_stop, 0);
        kit_close(&kit);
    }
    Kit  all = kit_open(tiny_tokenizer(), "<|im_end|>", chatml, TRAIN_ON_ALL);
    char row[600];
    snprintf(row, sizeof row, CHAT, "", "");
    EXPECT_OK(encode_json(&all, row));
    EXPECT_INT(all.encoder.num_trained, all.encoder.ids.len - 1);
    kit_close(&all);
}

/* A template's {% generation %} blocks mark only answers. A question that the row asks to train is found without marks. */
static void marks_hide_no_flag(void)
{
    if (!tiny_tokenizer()) SKIP("no ../shared");
    Kit kit =
        kit_open(tiny_tokenizer(), "<|im_end|>",
                 "{% for m in messages %}<|im_start|>{{ m.role }}{{ '\n' }}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
                 "<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
                 "{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}{% endif %}",
                 TRAIN_ON_ASSISTANT);
    char row[600];
    snprintf(row, sizeof row, CHAT, ", \"train\": true", "");
    EXPECT_OK(encode_json(&kit, row));
    EXPECT_STR(trained_text(&kit), "hello<|im_end|>|<|im_start|>user\nwhy<|im_end|>|because<|im_end|>");
    kit_close(&kit);
}

static void unstable_templates_are_found_or_refused(void)
{
    if (!tiny_tokenizer()) SKIP("no ../shared");
    char row[600];
    snprintf(row, sizeof row, CHAT, "", "");
    /* prints the number of messages first, so no prefix of the messages renders to a prefix of the text */
    Kit kit = kit_open(tiny_tokenizer(), "<|im_end|>",
                       "{{ messages|length }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}!<|im_end|>\n{% endfor %}",
                       TRAIN_ON_ASSISTANT);
    EXPECT_OK(encode_json(&kit, row));
    EXPECT_STR(trained_text(&kit), "hello!<|im_end|>|because!<|im_end|>");
    kit_close(&kit);
    /* prints answers before questions */
    kit = kit_open(tiny_tokenizer(), "<|im_end|>",
                   "{% for m in messages | sort(attribute='role') %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
                   TRAIN_ON_ASSISTANT);
    EXPECT_FAILS(encode_json(&kit, row), ERR_INVALID, "message 1 within message 4");
    kit_close(&kit);
    /* adds an empty thought to the last turn only, as Qwen3 does */
    kit = kit_open(tiny_tokenizer(), "<|im_end|>",
                   "{% for m in messages %}<|im_start|>{{ m.role }}{{ '\\n' }}{% if loop.last and m.role == 'assistant' %}"
                   "<think></think>{% endif %}{{ m.content }}<|im_end|>{{ '\\n' }}{% endfor %}"
                   "{% if add_generation_prompt %}<|im_start|>assistant{{ '\\n' }}{% endif %}",
                   TRAIN_ON_ASSISTANT);
    EXPECT_OK(encode_json(&kit, row));
    EXPECT_STR(trained_text(&kit), "hello<|im_end|>|<think></think>because<|im_end|>");
    kit_close(&kit);
}

static void text_gets_eos_and_prompts_are_masked(void)
{
    if (!tiny_tokenizer()) SKIP("no ../shared");
    Kit kit = kit_open(tiny_tokenizer(), "<|endoftext|>", NULL, TRAIN_ON_ASSISTANT);
    EXPECT_OK(mask_encode_text(&kit.encoder, str_of("hello"), true, true));
    EXPECT_STR(trained_text(&kit), "hello<|endoftext|>");
    Sample sample = {.text = str_of("Q: hi A: hello"), .prompt_bytes = 9};
    EXPECT_OK(mask_encode(&kit.encoder, &kit.arena, &sample));
    EXPECT_STR(trained_text(&kit), "hello<|endoftext|>");
    kit_close(&kit);
}

/* Every conversation of a real file with real templates: the shortcut gives the masks of rendering every prefix. */
static void shortcut_equals_prefixes(void)
{
    if (!tiny_tokenizer()) SKIP("no ../shared");
    static const char *const templates[] = {"Qwen-Qwen2.5-7B-Instruct", "Qwen-Qwen3-0.6B", "meta-llama-Llama-3.2-3B-Instruct"};
    static const char *const files[] = {"fastchat_dummy_conversation.json", "torchtune_chat_tiny.json"};
    char                     path[4300];
    for (size_t t = 0; t < 3; t++)
        for (size_t f = 0; f < 2; f++) {
            Arena     arena = {0};
            Str       source, text;
            JsonValue rows;
            snprintf(path, sizeof path, "%s/data/chat/templates/%s.jinja", test_shared_dir(), templates[t]);
            EXPECT_OK(file_read(&arena, path, 1 << 20, &source));
            snprintf(path, sizeof path, "%s/data/datasets/%s", test_shared_dir(), files[f]);
            EXPECT_OK(file_read(&arena, path, 1 << 24, &text));
            EXPECT_OK(json_parse(&arena, path, text.data, text.len, &rows));
            const char *eos = t == 2 ? "<|eot_id|>" : "<|im_end|>";
            Kit         quick = kit_open(tiny_tokenizer(), eos, source.data, TRAIN_ON_ASSISTANT);
            Kit         slow = kit_open(tiny_tokenizer(), eos, source.data, TRAIN_ON_ASSISTANT);
            mask_rules_forbid_shortcuts(slow.rules);
            DatasetOptions options = {.type = DATASET_AUTO};
            RowFormat      format;
            EXPECT_OK(format_detect(&options, &rows.items[0], &format));
            for (uint32_t r = 0; r < rows.count && r < 60; r++) {
                Sample sample;
                EXPECT_OK(format_row(&arena, &options, &format, &rows.items[r], mask_rules_traits(quick.rules), &sample));
                Status a = mask_encode(&quick.encoder, &arena, &sample), b = mask_encode(&slow.encoder, &arena, &sample);
                EXPECT_INT(a, b);
                EXPECT_INT(quick.encoder.ids.len, slow.encoder.ids.len);
                EXPECT(memcmp(quick.encoder.mask, slow.encoder.mask, slow.encoder.ids.len) == 0);
                if (t < 2 && a != OK) test_fail(__FILE__, __LINE__, "%s row %u: %s", templates[t], r, status_message());
                if (t < 2) EXPECT(quick.encoder.num_trained > 0);
            }
            kit_close(&quick);
            kit_close(&slow);
            arena_deinit(&arena);
        }
}

/* Random conversations with a byte vocabulary: memo and anchors give the same masks as encoding without them. */
static void quick_ways_change_nothing(void)
{
    if (!test_shared_dir()) SKIP("no ../shared");
    static const char *const texts[] = {"yes",
                                        "",
                                        " led\\n",
                                        "\\n\\nline",
                                        "<|im_end|>",
                                        "caf\xC3\xA9 e\xCC\x81",
                                        "\xF0\x9F\x99\x82\xE4\xB8\xAD",
                                        "a<|im_start|>assistant\\nb",
                                        "<think>\\nwhy\\n</think>\\n\\nso",
                                        "</think>",
                                        "\\n\\n\\n\\n",
                                        "<tool_response>1</tool_response>",
                                        "tab\\t<|endoftext|>"};
    static const char *const templates[] = {"Qwen-Qwen3-0.6B", "Qwen-Qwen2.5-7B-Instruct", "meta-llama-Llama-3.2-3B-Instruct",
                                            "google-gemma-2-2b-it"};
    char                     path[4300];
    int                      encoded = 0;
    for (size_t t = 0; t < 4; t++) {
        Arena arena = {0};
        Str   source;
        snprintf(path, sizeof path, "%s/data/chat/templates/%s.jinja", test_shared_dir(), templates[t]);
        EXPECT_OK(file_read(&arena, path, 1 << 20, &source));
        snprintf(path, sizeof path, "%s/data/tokenizers/qwen/qwen3/tokenizer.json", test_shared_dir());
        Kit quick = kit_open(path, "<|im_end|>", source.data, t == 1 ? TRAIN_ON_LAST_TURN : TRAIN_ON_ASSISTANT);
        Kit slow = kit_open(path, "<|im_end|>", source.data, t == 1 ? TRAIN_ON_LAST_TURN : TRAIN_ON_ASSISTANT);
        EXPECT(quick.rules->has_raw_bytes);
        mask_encoder_deinit(&slow.encoder);
        mask_rules_forbid_memo(slow.rules);
        slow.rules->has_raw_bytes = false;
        mask_encoder_init(&slow.encoder, slow.rules);
        for (uint32_t n = 0; n < 600; n++) {
            StrBuf row = {0};
            strbuf_puts(&row, "{\"messages\": [");
            for (uint32_t i = 0; i <= n % 5; i++)
                strbuf_printf(&row, "%s{\"role\": \"%s\", \"content\": \"%s%s\"}", i ? ", " : "", i % 2 ? "assistant" : "user",
                              texts[(n * 7 + i * 5 + n / 13) % 13], texts[(n / 5 + i * 3) % 13]);
            strbuf_puts(&row, "]}");
            Status a = encode_json(&quick, row.data), b = encode_json(&slow, row.data);
            EXPECT_INT(a, b);
            encoded += a == OK;
            EXPECT_INT(quick.encoder.num_trained, slow.encoder.num_trained);
            EXPECT_INT(quick.encoder.messages_unprinted, slow.encoder.messages_unprinted);
            EXPECT_INT(quick.encoder.turns_without_stop, slow.encoder.turns_without_stop);
            EXPECT_INT(quick.encoder.turns_empty, slow.encoder.turns_empty);
            if (a == OK && memcmp(quick.encoder.mask, slow.encoder.mask, slow.encoder.ids.len) != 0)
                test_fail(__FILE__, __LINE__, "%s: another mask for %s", templates[t], row.data);
            strbuf_deinit(&row);
        }
        kit_close(&quick);
        kit_close(&slow);
        arena_deinit(&arena);
    }
    EXPECT(encoded > 1500);
}

static const char *chat_template(Arena *arena, const char *name)
{
    char path[4300];
    Str  source;
    snprintf(path, sizeof path, "%s/data/chat/templates/%s.jinja", test_shared_dir(), name);
    EXPECT_OK(file_read(arena, path, 1 << 20, &source));
    return source.data;
}

#define ASKED "{\"messages\": [{\"role\": \"user\", \"content\": \"question\"}, "
#define ANSWERED "{\"role\": \"assistant\", \"content\": \"answer\"}]}"

static void contents_that_are_not_printed_are_counted(void)
{
    if (!tiny_tokenizer()) SKIP("no ../shared");
    static const struct {
        const char *row;
        int         unprinted; /* -1: the row is refused */
    } cases[] = {
        {ASKED ANSWERED, 0},
        {ASKED
         "{\"role\": \"assistant\", \"content\": \"<think>so long</think>short\"}, {\"role\": \"user\", \"content\": \"more\"}, " ANSWERED,
         0},
        {ASKED "{\"role\": \"tool\", \"content\": \"{\\\"degrees\\\": 21}\"}, " ANSWERED, 0},
        {ASKED "{\"role\": \"developer\", \"content\": \"be brief\"}, " ANSWERED, 0},
        {ASKED "{\"role\": \"critic\", \"content\": \"be brief\"}, " ANSWERED, -1},
        {ASKED "{\"role\": \"critic\", \"content\": \"\"}, " ANSWERED, 0},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"question\"}]}, " ANSWERED, 0},
    };
    Arena arena = {0};
    for (int has_memo = 0; has_memo < 2; has_memo++) {
        Kit kit = kit_open(tiny_tokenizer(), "<|im_end|>", chat_template(&arena, "Qwen-Qwen3-0.6B"), TRAIN_ON_ASSISTANT);
        mask_encoder_deinit(&kit.encoder);
        if (!has_memo) mask_rules_forbid_memo(kit.rules);
        mask_encoder_init(&kit.encoder, kit.rules);
        for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
            Status status = encode_json(&kit, cases[i / 2].row);
            EXPECT_INT(status, cases[i / 2].unprinted < 0 ? ERR_INVALID : OK);
            if (status == OK)
                EXPECT_INT(kit.encoder.messages_unprinted, cases[i / 2].unprinted);
            else
                EXPECT_CONTAINS(status_message(), "message 2: the template prints nothing of the role \"critic\"");
        }
        kit_close(&kit);
    }
    /* an answer that has text besides its calls */
    Kit llama = kit_open(tiny_tokenizer(), "<|eot_id|>", chat_template(&arena, "meta-llama-Llama-3.2-3B-Instruct"), TRAIN_ON_ASSISTANT);
    EXPECT_OK(encode_json(&llama, ASKED "{\"role\": \"assistant\", \"content\": \"let me look\", \"tool_calls\": [{\"name\": \"look\", "
                                        "\"arguments\": {}}]}]}"));
    EXPECT_INT(llama.encoder.messages_unprinted, 1);
    kit_close(&llama);
    arena_deinit(&arena);
}

static void greetings_are_trained(void)
{
    if (!tiny_tokenizer()) SKIP("no ../shared");
    static const char row[] =
        "{\"messages\": [{\"role\": \"assistant\", \"content\": \"welcome\"}, {\"role\": \"user\", \"content\": \"question\"}, " ANSWERED;
    static const char row_alone[] = "{\"messages\": [" ANSWERED;
    Arena             arena = {0};
    const char *const templates[][3] = {
        {chat_template(&arena, "Qwen-Qwen3-0.6B"), "welcome<|im_end|>|<think>\n\n</think>\n\nanswer<|im_end|>", "answer<|im_end|>"},
        {chat_template(&arena, "Qwen-Qwen2.5-7B-Instruct"), "welcome<|im_end|>|answer<|im_end|>", "answer<|im_end|>"},
        {chatml, "welcome<|im_end|>|answer<|im_end|>", "answer<|im_end|>"},
    };
    for (size_t i = 0; i < 6; i++) {
        Kit kit = kit_open(tiny_tokenizer(), "<|im_end|>", templates[i / 2][0], TRAIN_ON_ASSISTANT);
        if (i % 2) mask_rules_forbid_shortcuts(kit.rules);
        EXPECT_OK(encode_json(&kit, row));
        EXPECT_STR(trained_text(&kit), templates[i / 2][1]);
        EXPECT_OK(encode_json(&kit, row_alone));
        EXPECT_CONTAINS(trained_text(&kit), templates[i / 2][2]);
        kit_close(&kit);
    }
    static const char closed[] = "{% for m in messages %}{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}";
    Kit               kit = kit_open(tiny_tokenizer(), "<|im_end|>", closed, TRAIN_ON_ASSISTANT);
    EXPECT_OK(encode_json(&kit, row));
    EXPECT_STR(trained_text(&kit), "welcome<|im_end|>|answer<|im_end|>");
    kit_close(&kit);
    arena_deinit(&arena);
}

static void thinking_under_any_name_is_trained_or_counted(void)
{
    if (!tiny_tokenizer()) SKIP("no ../shared");
    static const char row[] = ASKED "{\"role\": \"assistant\", \"content\": \"answer\", \"%s\": \"why\"}]}";
    static const char other[] =
        "{% for m in messages %}<|im_start|>{{ m.role }}{{ '\n' }}{% if m.thinking %}({{ m.thinking }}){% endif %}{{ m.content }}<|im_end|>"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{{ '\n' }}{% endif %}";
    Arena arena = {0};
    struct {
        const char *source, *want;
        int         unprinted;
    } cases[] = {
        {chat_template(&arena, "Qwen-Qwen3-0.6B"), "<think>\nwhy\n</think>\n\nanswer<|im_end|>", 0},
        {other, "(why)answer<|im_end|>", 0},
        {chatml, "answer<|im_end|>", 1},
    };
    for (size_t i = 0; i < 3; i++) {
        Kit kit = kit_open(tiny_tokenizer(), "<|im_end|>", cases[i].source, TRAIN_ON_ASSISTANT);
        for (size_t k = 0; k < NUM_REASONING_KEYS; k++) {
            char thought[300];
            snprintf(thought, sizeof thought, row, reasoning_keys[k]);
            EXPECT_OK(encode_json(&kit, thought));
            EXPECT_STR(trained_text(&kit), cases[i].want);
            EXPECT_INT(kit.encoder.messages_unprinted, cases[i].unprinted);
        }
        kit_close(&kit);
    }
    arena_deinit(&arena);
}

static void parts_are_joined_where_the_template_takes_none(void)
{
    if (!tiny_tokenizer()) SKIP("no ../shared");
    static const char takes_parts[] = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content "
                                      "%}{{ p.text }};{% endfor %}{% endif %}{% endfor %}";
    static const char row[] = "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": "
                              "\"text\", \"text\": \"b\"}]}, "
                              "{\"role\": \"assistant\", \"content\": [{\"type\": \"text\", \"text\": \"c\"}]}]}";
    const char *const templates[][2] = {{chatml, "<|im_start|>user\nab<|im_end|>\n<|im_start|>assistant\nc<|im_end|>\n"},
                                        {takes_parts, "a;b;c;"}};
    for (size_t i = 0; i < 2; i++) {
        Kit kit = kit_open(tiny_tokenizer(), "<|im_end|>", templates[i][0], TRAIN_ON_ALL);
        EXPECT_OK(encode_json(&kit, row));
        EXPECT_INT(kit.encoder.text.len, strlen(templates[i][1]));
        EXPECT(memcmp(kit.encoder.text.data, templates[i][1], kit.encoder.text.len) == 0);
        EXPECT_INT(kit.encoder.messages_unprinted, 0);
        kit_close(&kit);
    }
}

TEST_MAIN(TEST(marks_hide_no_flag), TEST(greetings_are_trained), TEST(contents_that_are_not_printed_are_counted),
          TEST(parts_are_joined_where_the_template_takes_none), TEST(thinking_under_any_name_is_trained_or_counted),
          TEST(published_ids_and_masks), TEST(rules_choose_turns), TEST(unstable_templates_are_found_or_refused),
          TEST(text_gets_eos_and_prompts_are_masked), TEST(shortcut_equals_prefixes), TEST(quick_ways_change_nothing))
