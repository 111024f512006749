/* Whole tokenizers: the published vectors, round trips, streams, special tokens, configuration, damaged files. */
#include "test.h"

#include "base/json.h"
#include "files/file.h"
#include "text/tokenizer.h"
#include "text/tokenizer_unicode.h"

#include <dirent.h>
#include <unistd.h>

static Arena arena;

static const char *shared_path(const char *name)
{
    const char *dir = test_shared_dir();
    return dir ? arena_printf(&arena, "%s/data/%s", dir, name) : NULL;
}

static Str file_text(const char *path)
{
    Str text = {"", 0};
    EXPECT_OK(file_read(&arena, path, 64 << 20, &text));
    return text;
}

static JsonValue file_json(const char *path)
{
    JsonValue json = {0};
    Str       text = file_text(path);
    EXPECT_OK(json_parse(&arena, path, text.data, text.len, &json));
    return json;
}

static void ids_print(const TokenIds *ids, StrBuf *out)
{
    for (size_t i = 0; i < ids->len; i++) strbuf_printf(out, "%s%d", i ? " " : "", ids->data[i]);
}

/* The ids of text, as "1 2 3", allocated in the arena. */
static const char *encoded(const Tokenizer *tokenizer, Str text, EncodeOptions options)
{
    TokenizerScratch *scratch = tokenizer_scratch_create(tokenizer);
    TokenIds          ids = {0};
    StrBuf            out = {0};
    EXPECT_OK(tokenizer_encode(tokenizer, scratch, text.data, text.len, options, &ids));
    ids_print(&ids, &out);
    const char *result = arena_strdup(&arena, strbuf_cstr(&out));
    strbuf_deinit(&out);
    token_ids_deinit(&ids);
    tokenizer_scratch_destroy(scratch);
    return result;
}

static const char *json_ids(const JsonValue *list)
{
    StrBuf out = {0};
    for (uint32_t i = 0; i < list->count; i++) strbuf_printf(&out, "%s%d", i ? " " : "", (int)list->items[i].integer);
    const char *result = arena_strdup(&arena, strbuf_cstr(&out));
    strbuf_deinit(&out);
    return result;
}

/* Files .inp and .out: texts between separator lines, and lines of ids. */
static void check_ggml_vectors(const Tokenizer *tokenizer, const char *folder)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";
    Str               texts = file_text(arena_printf(&arena, "%s/vectors.inp", folder));
    Str               ids = file_text(arena_printf(&arena, "%s/vectors.out", folder));
    int               count = 0;
    while (ids.len > 0) {
        const char *end = strstr(texts.data, separator), *line_end = memchr(ids.data, '\n', ids.len);
        size_t      len = end ? (size_t)(end - texts.data) : texts.len;
        size_t      line = line_end ? (size_t)(line_end - ids.data) : ids.len;
        Str         want = {ids.data, line};
        while (want.len && want.data[0] == ' ') want = (Str){want.data + 1, want.len - 1};
        while (want.len && want.data[want.len - 1] == ' ') want.len--;
        EXPECT_STR(encoded(tokenizer, (Str){texts.data, len}, (EncodeOptions){0}), arena_strndup(&arena, want.data, want.len));
        count++;
        if (!end) break;
        texts = (Str){end + sizeof separator - 1, texts.len - len - (sizeof separator - 1)};
        ids = (Str){ids.data + line + 1, ids.len - line - 1};
    }
    EXPECT(count >= 46);
}

static void check_json_vectors(const Tokenizer *tokenizer, const char *path)
{
    JsonValue json = file_json(path);
    EXPECT(json.type == JSON_ARRAY && json.count > 0);
    for (uint32_t i = 0; json.type == JSON_ARRAY && i < json.count; i++) {
        const JsonValue *text = json_get(&json.items[i], "text"), *ids = json_get(&json.items[i], "token_ids");
        EXPECT_STR(encoded(tokenizer, text->string, (EncodeOptions){0}), json_ids(ids));
    }
}

static void every_published_vector_is_equal(void)
{
    static const struct {
        const char *folder, *ggml;
    } rows[] = {
        {"gpt2", "gpt2"}, {"phi-2", NULL}, {"phi-3", "phi-3"}, {"minimind", NULL}, {"qwen/qwen2.5", "qwen"}, {"qwen/qwen3", "qwen"},
    };
    if (!test_shared_dir()) SKIP("no shared data");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Tokenizer  *tokenizer;
        const char *folder = shared_path(arena_printf(&arena, "tokenizers/%s", rows[i].folder));
        EXPECT_OK(tokenizer_load(folder, &tokenizer));
        if (!tokenizer) continue;
        check_json_vectors(tokenizer, arena_printf(&arena, "%s/more_vectors.json", folder));
        if (rows[i].ggml) check_ggml_vectors(tokenizer, shared_path(arena_printf(&arena, "tokenizers/%s", rows[i].ggml)));
        tokenizer_destroy(tokenizer);
    }
}

static void texts_with_ids_are_equal(void)
{
    Tokenizer *tokenizer;
    if (!test_shared_dir()) SKIP("no shared data");
    EXPECT_OK(tokenizer_load(shared_path("tokenizers/gpt2"), &tokenizer));
    JsonValue json = file_json(shared_path("tokenizers/gpt2/long_text.json"));
    Str       text = json_get(&json, "text")->string;
    EXPECT_STR(encoded(tokenizer, text, (EncodeOptions){0}), json_ids(json_get(&json, "token_ids")));
    tokenizer_destroy(tokenizer);

    EXPECT_OK(tokenizer_load(shared_path("tokenizers/qwen/qwen3"), &tokenizer));
    json = file_json(shared_path("tokenizers/qwen/qwen3/with_special.json"));
    const JsonValue *ids = json_get(&json.items[0], "token_ids");
    const char      *want = NULL;
    TokenIds         list = {0};
    StrBuf           out = {0};
    EXPECT_STR(encoded(tokenizer, json_get(&json.items[0], "text")->string, (EncodeOptions){0}), json_ids(ids));
    for (uint32_t i = 0; i < ids->count; i++) token_ids_push(&list, (int32_t)ids->items[i].integer);
    EXPECT_OK(tokenizer_decode(tokenizer, list.data, list.len, true, &out));
    EXPECT(json_get_str(&json.items[0], "decoded_without_special", &want));
    EXPECT_STR(strbuf_cstr(&out), want);
    strbuf_deinit(&out);
    token_ids_deinit(&list);
    tokenizer_destroy(tokenizer);

    EXPECT_OK(tokenizer_load(shared_path("models/stories260K/hf"), &tokenizer));
    for (int i = 1; i <= 3; i += 2) {
        json = file_json(shared_path(arena_printf(&arena, "models/stories260K/text_%d.losses.json", i)));
        text = file_text(shared_path(arena_printf(&arena, "models/stories260K/text_%d.txt", i)));
        ids = json_get(&json, "ids");
        EXPECT(ids && ids->count > 10);
        if (!ids) continue; /* cut to the model's context */
        const char *got = encoded(tokenizer, text, (EncodeOptions){.add_special = true}), *wanted = json_ids(ids);
        EXPECT_STR(arena_strndup(&arena, got, strnlen(got, strlen(wanted))), wanted);
    }
    tokenizer_destroy(tokenizer);
}

/* Encodes and decodes one text, also as a stream, whose parts must each be whole characters. Special tokens are read as plain text: phi-3's
 * would swallow white space around them. */
static void check_round_trip(const Tokenizer *tokenizer, TokenizerScratch *scratch, const char *name, Str text)
{
    TokenIds    ids = {0};
    StrBuf      out = {0}, streamed = {0};
    TokenStream stream = {0};
    EXPECT_OK(tokenizer_encode(tokenizer, scratch, text.data, text.len, (EncodeOptions){.plain_special = true}, &ids));
    EXPECT_OK(tokenizer_decode(tokenizer, ids.data, ids.len, false, &out));
    if (out.len != text.len || memcmp(strbuf_cstr(&out), text.data, text.len) != 0)
        test_fail(__FILE__, __LINE__, "%s: decoding gives another text", name);
    size_t checked = 0;
    for (size_t i = 0; i < ids.len; i++) {
        EXPECT_OK(token_stream_push(tokenizer, &stream, ids.data[i], false, &streamed));
        if (utf8_valid_prefix(strbuf_cstr(&streamed) + checked, streamed.len - checked) != streamed.len - checked)
            test_fail(__FILE__, __LINE__, "%s: the stream split a character at token %zu", name, i);
        checked = streamed.len;
    }
    token_stream_finish(&stream, &streamed);
    EXPECT(streamed.len == text.len && memcmp(strbuf_cstr(&streamed), text.data, text.len) == 0);
    strbuf_deinit(&out);
    strbuf_deinit(&streamed);
    token_ids_deinit(&ids);
}

/* Every text file under a folder. phi-3 decodes U+2581 to a space, so texts with it can't be recovered. */
static int check_folder(const Tokenizer *tokenizer, TokenizerScratch *scratch, const char *folder, bool keeps_u2581)
{
    DIR           *dir = opendir(folder);
    struct dirent *entry;
    int            count = 0;
    while (dir && (entry = readdir(dir)) != NULL) {
        const char *path = arena_printf(&arena, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] == '.') continue;
        if (is_folder(path)) {
            count += check_folder(tokenizer, scratch, path, keeps_u2581);
        } else if (bytes_of(path) < 800 << 10) {
            Str text = file_text(path);
            if (utf8_valid_prefix(text.data, text.len) < text.len) continue;
            if (!keeps_u2581 && strstr(text.data, "\xE2\x96\x81")) continue;
            check_round_trip(tokenizer, scratch, path, text);
            count++;
        }
    }
    if (dir) closedir(dir);
    return count;
}

static void texts_come_back(void)
{
    static const char *const folders[] = {"tokenizers/gpt2", "tokenizers/minimind", "tokenizers/qwen/qwen3", "tokenizers/phi-3"};
    if (!test_shared_dir()) SKIP("no shared data");
    for (int i = 0; i < 4; i++) {
        Tokenizer *tokenizer;
        EXPECT_OK(tokenizer_load(shared_path(folders[i]), &tokenizer));
        if (!tokenizer) continue;
        TokenizerScratch *scratch = tokenizer_scratch_create(tokenizer);
        EXPECT(check_folder(tokenizer, scratch, shared_path("datasets"), i < 3) >= 8);
        EXPECT(check_folder(tokenizer, scratch, shared_path("chat"), i < 3) >= 10);
        tokenizer_scratch_destroy(scratch);
        tokenizer_destroy(tokenizer);
    }
}

static void configuration_gives_bos_eos_and_padding(void)
{
    static const struct {
        const char *folder;
        int         bos, eos, pad;
        bool        adds_bos;
    } rows[] = {
        {"tokenizers/gpt2", 50256, 50256, -1, false}, {"tokenizers/qwen/qwen3", -1, 151645, 151643, false},
        {"tokenizers/phi-3", 1, 32000, 32000, false}, {"tokenizers/minimind", 1, 2, 0, false},
        {"models/stories260K/hf", 1, 2, -1, true},
    };
    if (!test_shared_dir()) SKIP("no shared data");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Tokenizer *tokenizer;
        EXPECT_OK(tokenizer_load(shared_path(rows[i].folder), &tokenizer));
        if (!tokenizer) continue;
        EXPECT_INT(tokenizer_bos_id(tokenizer), rows[i].bos);
        EXPECT_INT(tokenizer_eos_id(tokenizer), rows[i].eos);
        EXPECT_INT(tokenizer_pad_id(tokenizer), rows[i].pad);
        EXPECT_INT(tokenizer_adds_bos(tokenizer), rows[i].adds_bos);
        tokenizer_destroy(tokenizer);
    }
}

/* --- made files --------------------------------------------------------------------------------------------------- */

#define BYTE_LEVEL "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true}"

/* A byte-level file: ids of the 256 bytes, then "ab" (256) and "abab" (257); more: further members of the file. */
static const char *made_bytes(const char *more, const char *more_model)
{
    StrBuf out = {0};
    strbuf_printf(&out, "{%s%s\"pre_tokenizer\":" BYTE_LEVEL ",\"decoder\":" BYTE_LEVEL ",\"model\":{\"type\":\"BPE\"%s,\"vocab\":{", more,
                  *more ? "," : "", more_model);
    for (int byte = 0; byte < 256; byte++) {
        char text[4];
        json_write_string(&out, text, utf8_encode(byte_to_char((uint8_t)byte), text));
        strbuf_printf(&out, ":%d,", byte);
    }
    strbuf_puts(&out, "\"ab\":256,\"abab\":257},\"merges\":[\"a b\",[\"ab\",\"ab\"]]}}");
    const char *result = arena_strdup(&arena, out.data);
    strbuf_deinit(&out);
    return result;
}

static Tokenizer *parsed(const char *json)
{
    Tokenizer *tokenizer;
    EXPECT_OK(tokenizer_parse("made.json", json, strlen(json), &tokenizer));
    return tokenizer;
}

static void long_words_merge_from_the_left(void)
{
    Tokenizer        *tokenizer = parsed(made_bytes("", ""));
    TokenizerScratch *scratch = tokenizer_scratch_create(tokenizer);
    TokenIds          ids = {0};
    StrBuf            text = {0};
    EXPECT_STR(encoded(tokenizer, str_of("ababab"), (EncodeOptions){0}), "257 256");
    for (int i = 0; i < 500001; i++) strbuf_puts(&text, "ab");
    EXPECT_OK(tokenizer_encode(tokenizer, scratch, text.data, text.len, (EncodeOptions){0}, &ids));
    EXPECT_INT(ids.len, 250001);
    for (size_t i = 0; i + 1 < ids.len; i++) EXPECT(ids.data[i] == 257);
    EXPECT_INT(ids.data[ids.len - 1], 256);
    check_round_trip(tokenizer, scratch, "a long word", (Str){text.data, text.len});
    strbuf_deinit(&text);
    token_ids_deinit(&ids);
    tokenizer_scratch_destroy(scratch);
    tokenizer_destroy(tokenizer);
}

static void special_tokens_can_be_plain_text(void)
{
    Tokenizer *tokenizer = parsed(made_bytes("\"added_tokens\":[{\"id\":300,\"content\":\"<s>\",\"special\":true},{"
                                             "\"id\":301,\"content\":\"<t>\",\"special\":false,"
                                             "\"normalized\":false}],\"post_processor\":{\"type\":\"Sequence\","
                                             "\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":"
                                             "\"RobertaProcessing\",\"cls\":[\"<s>\",300],\"sep\":[\"<t>\",301]}]}",
                                             ""));
    EXPECT_STR(encoded(tokenizer, str_of("a<s><t>"), (EncodeOptions){0}), "97 300 301");
    EXPECT_STR(encoded(tokenizer, str_of("a<s><t>"), (EncodeOptions){.plain_special = true}), "97 60 115 62 301");
    EXPECT_STR(encoded(tokenizer, str_of("b"), (EncodeOptions){.add_special = true}), "300 98 301");
    EXPECT_INT(tokenizer_vocab_size(tokenizer), 302);
    EXPECT_STR(tokenizer_id_to_token(tokenizer, 257), "abab");
    EXPECT_STR(tokenizer_id_to_token(tokenizer, 301), "<t>");
    EXPECT(tokenizer_id_to_token(tokenizer, 299) == NULL && tokenizer_id_to_token(tokenizer, 302) == NULL);
    EXPECT(tokenizer_is_special(tokenizer, 300) && !tokenizer_is_special(tokenizer, 301) && !tokenizer_is_special(tokenizer, -1));
    EXPECT_INT(tokenizer_bos_id(tokenizer), 300);
    EXPECT(tokenizer_adds_bos(tokenizer));
    StrBuf out = {0};
    EXPECT_OK(tokenizer_decode(tokenizer, (int32_t[]){300, 256, 299, 301}, 4, true, &out));
    EXPECT_STR(strbuf_cstr(&out), "ab<t>");
    EXPECT_FAILS(tokenizer_decode(tokenizer, (int32_t[]){302}, 1, true, &out), ERR_INVALID, "token id 302");
    EXPECT_FAILS(token_stream_push(tokenizer, &(TokenStream){0}, -1, true, &out), ERR_INVALID, "token id -1");
    EXPECT_FAILS(tokenizer_encode(tokenizer, NULL, "", (size_t)INT32_MAX + 1, (EncodeOptions){0}, NULL), ERR_INVALID, "2 GB");
    strbuf_deinit(&out);
    tokenizer_destroy(tokenizer);
}

static void bad_utf8_encodes_as_the_replacement_character(void)
{
    Tokenizer *tokenizer = parsed(made_bytes("", ""));
    EXPECT_STR(encoded(tokenizer, str_of("a\xFFz\xE2\x82"), (EncodeOptions){0}),
               encoded(tokenizer, str_of("a\xEF\xBF\xBDz\xEF\xBF\xBD"), (EncodeOptions){0}));
    EXPECT_STR(encoded(tokenizer, (Str){"\0a", 2}, (EncodeOptions){0}), "0 97");
    tokenizer_destroy(tokenizer);
}

static void added_tokens_follow_their_flags(void)
{
    Tokenizer *tokenizer = parsed(made_bytes("\"normalizer\":{\"type\":\"Lowercase\"},\"added_tokens\":[{\"id\":300,"
                                             "\"content\":\"<m>\",\"lstrip\":true,\"special\":true},"
                                             "{\"id\":301,\"content\":\"<r>\",\"rstrip\":true,\"normalized\":false},{"
                                             "\"id\":302,\"content\":\"FOO\",\"normalized\":true,"
                                             "\"single_word\":true},{\"id\":303,\"content\":\"<rr\",\"normalized\":"
                                             "false},{\"id\":304,\"content\":\"\",\"normalized\":false},"
                                             "{\"id\":305,\"content\":\" \",\"normalized\":false,\"rstrip\":true}]",
                                             ",\"ignore_merges\":true"));
    EXPECT_STR(encoded(tokenizer, str_of("x<m>y"), (EncodeOptions){0}), "120 300 121");
    EXPECT_STR(encoded(tokenizer, str_of("x\t\n<m>"), (EncodeOptions){0}), "120 300");
    EXPECT_STR(encoded(tokenizer, str_of("<r>\n \ny"), (EncodeOptions){0}), "301 305 121");
    EXPECT_STR(encoded(tokenizer, str_of("Foo fOO-foox"), (EncodeOptions){0}), "302 305 302 45 102 111 111 120");
    EXPECT_STR(encoded(tokenizer, str_of("<rr<r"), (EncodeOptions){0}), "303 60 114");
    EXPECT_STR(encoded(tokenizer, str_of("abab"), (EncodeOptions){0}), "257");
    tokenizer_destroy(tokenizer);
}

/* A byte-level tokenizer.json: the characters of the bytes have the first ids, in order; then come the words of the case. */
static Str beside_tokenizer(const JsonValue *one)
{
    StrBuf           json = {0};
    const JsonValue *words = json_get(one, "words"), *lowercase = json_get(one, "lowercase");
    strbuf_puts(&json, "{\"version\": \"1.0\", \"added_tokens\": ");
    json_write(&json, json_get(one, "added_tokens"), -1);
    strbuf_printf(&json, ", \"normalizer\": %s", lowercase->boolean ? "{\"type\": \"Lowercase\"}" : "null");
    strbuf_puts(&json, ", \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": true}, "
                       "\"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {");
    int id = 0;
    for (int code = 33; code < 324; code++) {
        if ((code > 126 && code < 161) || code == 173) continue;
        strbuf_printf(&json, "%s\"\\u%04x\": %d", id ? ", " : "", code, id);
        id++;
    }
    for (uint32_t i = 0; i < words->count; i++) {
        strbuf_puts(&json, ", ");
        json_write(&json, &words->items[i], -1);
        strbuf_printf(&json, ": %d", id++);
    }
    strbuf_puts(&json, "}}}");
    Str out = {arena_strndup(&arena, json.data, json.len), json.len};
    strbuf_deinit(&json);
    return out;
}

static int32_t id_or_none(const JsonValue *value)
{
    return value->type == JSON_INT ? (int32_t)value->integer : -1;
}

/* Random forms of tokenizer_config.json and similar files, and the result of transformers for each (tests/oracle/make_side_tokens.py). */
static void tokens_beside_the_file_are_added_as_in_transformers(void)
{
    JsonValue        file = file_json("tests/fixtures/side_tokens.json");
    const JsonValue *cases = json_get(&file, "cases");
    for (uint32_t i = 0; i < cases->count; i++) {
        const JsonValue *one = &cases->items[i], *files = json_get(one, "files");
        char             folder[] = "/tmp/surogate_beside_XXXXXX";
        Str              json = beside_tokenizer(one);
        Tokenizer       *tokenizer;
        EXPECT(mkdtemp(folder) != NULL);
        EXPECT_OK(file_write_atomic(arena_printf(&arena, "%s/tokenizer.json", folder), json.data, json.len));
        for (uint32_t k = 0; k < files->count; k++) {
            StrBuf text = {0};
            json_write(&text, &files->members[k].value, -1);
            EXPECT_OK(file_write_atomic(arena_printf(&arena, "%s/%s", folder, files->members[k].key.data), text.data, text.len));
            strbuf_deinit(&text);
        }
        EXPECT_OK(tokenizer_load(folder, &tokenizer));
        EXPECT_STR(encoded(tokenizer, json_get(one, "text")->string, (EncodeOptions){0}), json_ids(json_get(one, "ids")));
        EXPECT_INT(tokenizer_eos_id(tokenizer), id_or_none(json_get(one, "eos")));
        EXPECT_INT(tokenizer_pad_id(tokenizer), id_or_none(json_get(one, "pad")));
        tokenizer_destroy(tokenizer);
        EXPECT_OK(file_remove_tree(folder));
    }
}

/* Models whose symbols are characters: unknown tokens, byte fallback, word affixes. */
static void unknown_characters_follow_the_model(void)
{
    static const struct {
        const char *model, *text, *ids;
    } rows[] = {
        {"\"unk_token\":\"?\"",
         "a\xC3\xA9\xC3\xA9"
         "b",
         "1 0 0 2"},
        {"\"unk_token\":\"?\",\"fuse_unk\":true",
         "a\xC3\xA9\xC3\xA9"
         "b\xC3\xA9",
         "1 0 2 0"},
        {"\"unk_token\":null",
         "a\xC3\xA9"
         "b",
         "3"},
        {"\"byte_fallback\":true",
         "a\xC3\xA9"
         "b",
         "1 4 5 2"},
        {"\"byte_fallback\":true,\"unk_token\":\"?\"",
         "\xC3\xA8"
         "b",
         "0 2"},
        {"\"continuing_subword_prefix\":\"#\",\"unk_token\":\"?\"", "ab", "7"},
        {"\"end_of_word_suffix\":\"_\",\"unk_token\":\"?\"", "ab", "9"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bool        prefix = strstr(rows[i].model, "#") != NULL, suffix = strstr(rows[i].model, "_\"") != NULL;
        const char *merges = prefix ? "\"a #b\"" : suffix ? "\"a b_\"" : "\"a b\"";
        Tokenizer  *tokenizer = parsed(arena_printf(&arena,
                                                    "{\"model\":{%s,\"vocab\":{\"?\":0,\"a\":1,\"b\":2,\"%s\":3,\"<0xC3>"
                                                     "\":4,\"<0xA9>\":5,\"#b\":6,\"%s\":7,\"b_\":8,"
                                                     "\"ab_\":9},\"merges\":[%s]}}",
                                                    rows[i].model, prefix ? "zz" : "ab", prefix ? "ab" : "zz", merges));
        EXPECT_STR(encoded(tokenizer, str_of(rows[i].text), (EncodeOptions){0}), rows[i].ids);
        tokenizer_destroy(tokenizer);
    }
}

static void damaged_files_say_where_and_what(void)
{
#define MODEL "\"model\":{\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[]}"
    static const struct {
        const char *json;
        Status      status;
        const char *part;
    } rows[] = {
        {"", ERR_INVALID, "made.json:1:1"},
        {"[]", ERR_INVALID, "expected an object"},
        {"{}", ERR_INVALID, "\"model\""},
        {"{\n\n\"model\":{\"type\":\"Unigram\"}}", ERR_UNSUPPORTED, "made.json:3:"},
        {"{\"model\":{\"type\":\"WordPiece\"}}", ERR_UNSUPPORTED, "WordPiece"},
        {"{\"model\":{\"dropout\":0.1}}", ERR_UNSUPPORTED, "dropout"},
        {"{\"model\":{\"vocab\":[]}}", ERR_INVALID, "model.vocab"},
        {"{\"model\":{\"vocab\":{\"a\":-1}}}", ERR_INVALID, "\"a\""},
        {"{\"model\":{\"vocab\":{\"a\":99999999}}}", ERR_INVALID, "\"a\""},
        {"{\"model\":{\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}}", ERR_INVALID, "the same id 1"},
        {"{\"model\":{\"vocab\":{},\"merges\":[]}}", ERR_INVALID, "empty"},
        {"{\"model\":{\"vocab\":{\"a\":0}}}", ERR_INVALID, "model.merges"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", ERR_INVALID, "merge 0"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[7]}}", ERR_INVALID, "merge 0"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}}", ERR_INVALID, "more than one space"},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a x\"]}}", ERR_INVALID, "\"x\""},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"x a\"]}}", ERR_INVALID, "\"x\""},
        {"{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}", ERR_INVALID, "\"aa\""},
        {"{\"model\":{\"unk_token\":\"?\",\"vocab\":{\"a\":0},\"merges\":[]}}", ERR_INVALID, "unk_token"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Precompiled\"}}", ERR_UNSUPPORTED, "Precompiled"},
        {"{" MODEL ",\"normalizer\":{}}", ERR_INVALID, "normalizer"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Sequence\"}}", ERR_INVALID, "normalizers"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"content\":\"\"}}", ERR_INVALID, "String"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(\"},\"content\":\"\"}}", ERR_UNSUPPORTED, "Regex"},
        {"{" MODEL ",\"normalizer\":{\"type\":\"Prepend\"}}", ERR_INVALID, "prepend"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}}", ERR_UNSUPPORTED, "UnicodeScripts"},
        {"{" MODEL ",\"pre_tokenizer\":7}", ERR_INVALID, "pre_tokenizer"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Sequence\"}}", ERR_INVALID, "pretokenizers"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\"}}", ERR_INVALID, "pattern"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[\"}}}", ERR_INVALID, "no ]"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Odd\"}}", ERR_UNSUPPORTED, "Odd"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"prepend_scheme\":\"odd\"}}", ERR_UNSUPPORTED, "odd"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\"}}", ERR_INVALID, "replacement"},
        {"{" MODEL ",\"pre_tokenizer\":{\"type\":\"CharDelimiterSplit\"}}", ERR_INVALID, "delimiter"},
        {"{" MODEL ",\"decoder\":{\"type\":\"CTC\"}}", ERR_UNSUPPORTED, "CTC"},
        {"{" MODEL ",\"decoder\":[]}", ERR_INVALID, "decoder"},
        {"{" MODEL ",\"decoder\":{\"type\":\"Sequence\"}}", ERR_INVALID, "decoders"},
        {"{" MODEL ",\"decoder\":{\"type\":\"Strip\",\"content\":\"\"}}", ERR_INVALID, "Strip"},
        {"{" MODEL ",\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"\"}}", ERR_INVALID, "Metaspace"},
        {"{" MODEL ",\"decoder\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(\"},\"content\":\"\"}}", ERR_UNSUPPORTED, "Regex"},
        {"{" MODEL ",\"added_tokens\":{}}", ERR_INVALID, "added_tokens"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":5}]}", ERR_INVALID, "content"},
        {"{" MODEL ",\"added_tokens\":[{\"id\":1,\"content\":\"x\"}]}", ERR_INVALID, "the id 1 of \"b\""},
        {"{" MODEL ",\"post_processor\":{}}", ERR_INVALID, "post_processor"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"Odd\"}}", ERR_UNSUPPORTED, "Odd"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"Sequence\"}}", ERR_INVALID, "processors"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"BertProcessing\",\"cls\":[\"a\",9]}}", ERR_INVALID, "cls"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\"}}", ERR_INVALID, "single"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}}", ERR_UNSUPPORTED, "0 times"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[7]}}", ERR_INVALID, "Sequence"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{}}]}}", ERR_INVALID, "id"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"a\"}}]}}", ERR_INVALID,
         "no ids"},
        {"{" MODEL ",\"post_processor\":{\"type\":\"TemplateProcessing\",\"special_tokens\":{\"a\":{\"ids\":[99]}},\"single\":"
         "[{\"SpecialToken\":{\"id\":\"a\"}}]}}",
         ERR_INVALID, "outside the vocabulary"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Tokenizer *tokenizer = NULL;
        EXPECT_FAILS(tokenizer_parse("made.json", rows[i].json, strlen(rows[i].json), &tokenizer), rows[i].status, rows[i].part);
        EXPECT(tokenizer == NULL);
        tokenizer_destroy(tokenizer);
    }
    Tokenizer *tokenizer;
    EXPECT_FAILS(tokenizer_load("/nonexistent", &tokenizer), ERR_NOT_FOUND, "/nonexistent: no such file or folder");
}

static void add_bos_token_decides_over_the_post_processor(void)
{
    const char *dir = arena_printf(&arena, "/tmp/test_tokenizer_%d", (int)getpid());
    const char *model = made_bytes("\"added_tokens\":[{\"id\":300,\"content\":\"<s>\",\"special\":true}]", "");
    static const struct {
        const char *config, *ids;
    } rows[] = {
        {"{\"bos_token\":\"<s>\",\"add_bos_token\":true}", "300 97"},
        {"{\"bos_token\":{\"content\":\"<s>\"},\"add_bos_token\":false,\"eos_token\":\"ab\",\"add_eos_token\":true}", "97 256"},
        {"{\"bos_token\":\"unknown\",\"add_bos_token\":true}", "301 97"}, /* "unknown" becomes a new token */
    };
    EXPECT_OK(file_make_dirs(dir));
    EXPECT_OK(file_write_atomic(arena_printf(&arena, "%s/tokenizer.json", dir), model, strlen(model)));
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        Tokenizer *tokenizer;
        EXPECT_OK(file_write_atomic(arena_printf(&arena, "%s/tokenizer_config.json", dir), rows[i].config, strlen(rows[i].config)));
        EXPECT_OK(tokenizer_load(dir, &tokenizer));
        EXPECT_STR(encoded(tokenizer, str_of("a"), (EncodeOptions){.add_special = true}), rows[i].ids);
        tokenizer_destroy(tokenizer);
    }
    EXPECT_OK(file_remove_tree(dir));
}

int main(int argc, char **argv)
{
    static const TestCase cases[] = {
        TEST(every_published_vector_is_equal),
        TEST(texts_with_ids_are_equal),
        TEST(texts_come_back),
        TEST(configuration_gives_bos_eos_and_padding),
        TEST(long_words_merge_from_the_left),
        TEST(special_tokens_can_be_plain_text),
        TEST(bad_utf8_encodes_as_the_replacement_character),
        TEST(added_tokens_follow_their_flags),
        TEST(tokens_beside_the_file_are_added_as_in_transformers),
        TEST(unknown_characters_follow_the_model),
        TEST(damaged_files_say_where_and_what),
        TEST(add_bos_token_decides_over_the_post_processor),
    };
    int failed = test_run(cases, (int)(sizeof cases / sizeof cases[0]), argc, argv);
    arena_deinit(&arena);
    return failed;
}
