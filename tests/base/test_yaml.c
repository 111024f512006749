/* The YAML reader: trees, positions, bounds. */
#include "base/yaml.h"
#include "test.h"

static Arena arena;

static Status parse(const char *text, YamlNode **out)
{
    return yaml_parse(&arena, "r.yaml", text, strlen(text), out);
}

static void trees_have_positions(void)
{
    YamlNode *root;
    EXPECT_OK(parse(
        "# run\nmodel: Qwen/Qwen3-0.6B\nlr: 2e-4\nlist:\n  - a\n  - 'b c'\nflow: {x: [1, \"2\\n\"], y: }\ntext: |\n  l1\n  l2\n", &root));
    EXPECT_INT(root->type, YAML_MAPPING);
    EXPECT_INT(root->count, 5);
    EXPECT_STR(root->keys[0]->text.data, "model");
    EXPECT_STR(root->items[0]->text.data, "Qwen/Qwen3-0.6B");
    EXPECT_INT(root->items[0]->line, 2);
    EXPECT_INT(root->items[0]->column, 8);
    EXPECT_INT(root->keys[1]->line, 3);
    EXPECT(root->items[1]->is_plain);
    EXPECT_INT(root->items[2]->count, 2);
    EXPECT_STR(root->items[2]->items[1]->text.data, "b c");
    EXPECT_INT(root->items[2]->items[1]->line, 6);
    EXPECT_INT(root->items[2]->items[1]->column, 5);
    EXPECT(!root->items[2]->items[1]->is_plain);
    EXPECT_STR(root->items[3]->items[0]->items[1]->text.data, "2\n");
    EXPECT(yaml_is_null(root->items[3]->items[1]));
    EXPECT_STR(root->items[4]->text.data, "l1\nl2\n");
    EXPECT_STR(root->source, "r.yaml");
}

/* The text of key a, the document's first. */
static const char *text_of_a(const char *text)
{
    YamlNode *root;
    EXPECT_OK(parse(text, &root));
    EXPECT_STR(root->keys[0]->text.data, "a");
    return root->items[0]->text.data;
}

static void texts_are_what_users_mean(void)
{
    static const char *const texts[][2] = {
        {"a: 1e-4", "1e-4"},
        {"a: x:y", "x:y"},
        {"a: http://h/p?b=c#d # comment\n", "http://h/p?b=c#d"},
        {"a: C:\\data", "C:\\data"},
        {"a: \"x: y\"", "x: y"},
        {"a: 'it''s'", "it's"},
        {"a: \"\\u00e9\\x41\\n\\/\"", "\u00e9A\n/"},
        {"a:\tx\t# tabs between\n", "x"},
        {"a: one\n  two\n\n  three\nb: 1\n", "one two\nthree"},
        {"a: 'one\n  two'\n", "one two"},
        {"a: |\n  l1\n   l2\n\nb: 1\n", "l1\n l2\n"},
        {"a: |- # comment\n  l1\n", "l1"},
        {"a: |+\n  l1\n\nb: 1\n", "l1\n\n"},
        {"a: >\n  l1\n  l2\n\n  l3\n", "l1 l2\nl3\n"},
        {"a: |\r\n  l1\r\n  l2\r\n", "l1\nl2\n"},
        {"---\na: x\n...\n# comment\n", "x"},
        {"%YAML 1.2\n--- # comment\na: x\n", "x"},
        {"\xEF\xBB\xBF"
         "a: x\n",
         "x"},
        {"{\n\t\"a\":\"x\",\n\t\"b\":[1]\n}\n", "x"},
        {"? a\n: x\n", "x"},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) EXPECT_STR(text_of_a(texts[i][0]), texts[i][1]);
    YamlNode *root;
    EXPECT_OK(parse("a: [\n1, # one\n2,\n]\nb: {x: 1,\n y: [p:q, -1]}\n", &root));
    EXPECT_INT(root->items[0]->count, 2);
    EXPECT_STR(root->items[1]->items[1]->items[0]->text.data, "p:q");
    EXPECT_OK(parse("\xEF\xBB\xBF"
                    "a: 1\r\n\r\n\u00e9: {\u00e9: \u65e5, b: c}\r\n",
                    &root));
    EXPECT_INT(root->items[0]->column, 4);
    EXPECT_INT(root->items[1]->line, 3);
    EXPECT_INT(root->items[1]->items[1]->column, 14);
}

static void empty_documents_are_empty_mappings(void)
{
    const char *texts[] = {"", "# only a comment\n", "---\n", "~\n"};
    for (int i = 0; i < 4; i++) {
        YamlNode *root;
        EXPECT_OK(parse(texts[i], &root));
        EXPECT_INT(root->type, YAML_MAPPING);
        EXPECT_INT(root->count, 0);
    }
}

/* The text of the scalar at `key`; NULL: the mapping has no such key. */
static const char *text_at(const YamlNode *mapping, const char *key)
{
    for (size_t i = 0; i < mapping->count; i++)
        if (strcmp(mapping->keys[i]->text.data, key) == 0) return mapping->items[i]->text.data;
    return NULL;
}

static void merge_keys_give_keys_that_are_missing(void)
{
    YamlNode *root;
    EXPECT_OK(
        parse("- &one {path: a, type: text, weight: 2}\n- <<: *one\n  path: b\n- {path: c, <<: [{type: chat}, *one]}\n- '<<': x\n", &root));
    const YamlNode *second = root->items[1], *third = root->items[2];
    EXPECT_INT(second->count, 3);
    EXPECT_STR(text_at(second, "path"), "b");
    EXPECT_STR(text_at(second, "type"), "text");
    EXPECT_INT(third->count, 3);
    EXPECT_STR(text_at(third, "path"), "c");
    EXPECT_STR(text_at(third, "type"), "chat"); /* of several merged mappings, the first that has the key counts */
    EXPECT_STR(text_at(third, "weight"), "2");
    EXPECT_INT(third->items[2]->line, 1); /* the line on which the merged value was written */
    EXPECT_STR(text_at(root->items[3], "<<"), "x");
    EXPECT_OK(parse("a: &a {x: 1}\nb: &b {<<: *a, y: 2}\nc: {<<: *b}\n", &root));
    EXPECT_STR(text_at(root->items[2], "x"), "1");
    EXPECT_STR(text_at(root->items[2], "y"), "2");
}

static void aliases_share_the_node(void)
{
    YamlNode *root;
    EXPECT_OK(parse("a: &x [1, 2]\nb: *x\nc: &y z\nd: *y\n", &root));
    EXPECT(root->items[0] == root->items[1]);
    EXPECT_STR(root->items[3]->text.data, "z");
    EXPECT_FAILS(parse("a: *x\n", &root), ERR_INVALID, "r.yaml:1:4: no anchor &x");
    EXPECT_FAILS(parse("a: &x [*x]\n", &root), ERR_INVALID, "inside of what it stands for");
    StrBuf text = {0};
    strbuf_puts(&text, "a0: &a0 [x]\n");
    for (int i = 1; i < 30; i++)
        strbuf_printf(&text, "a%d: &a%d [*a%d, *a%d, *a%d, *a%d, *a%d, *a%d]\n", i, i, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1);
    EXPECT_OK(yaml_parse(&arena, "bomb", text.data, text.len, &root));
    EXPECT(arena.used_bytes < 1 << 20);
    strbuf_deinit(&text);
}

static void what_is_no_yaml_is_an_error_with_its_place(void)
{
    YamlNode   *root;
    const char *bad[] = {"a: [1, 2",
                         "a: {b",
                         "a: \"x",
                         "a: 'x",
                         "a: b: c",
                         "\ta: 1",
                         "a: 1\n  b: 2\n",
                         "- a\nb: 1\n",
                         "a: @x",
                         "%YAML x\n---\n",
                         "[1]]",
                         "}",
                         "a: !!str 5",
                         "a: 1\n---\nb: 2\n",
                         "a: \x01",
                         "a: \xff",
                         "\xed\xa0\x80",
                         "\xe0\x80\x80",
                         "\xf0\x80\x80\x80",
                         "\xf4\x90\x80\x80",
                         "a\xc3",
                         "a: \"\\0\"",
                         "a: \xc3("};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (parse(bad[i], &root) != ERR_INVALID) test_fail(__FILE__, __LINE__, "accepted: %s", bad[i]);
        EXPECT_CONTAINS(status_message(), "r.yaml:");
    }
}

static void mistakes_are_said_where_they_are(void)
{
    static const char *const mistakes[][2] = {
        {"a:\n\tb: 1\n", "2:1: a tab where only spaces may stand"},
        {"d:\n  - path: x\n\t  type: y\n", "3:1: a tab where only spaces may stand"},
        {"a: |\n\tx\n", "2:1: a tab where only spaces may stand"},
        {"model: x\n lr: 2\n", "2:4: no key can stand here; check the indentation"},
        {"a: x: y\n", "1:5: no key can stand here; check the indentation and the line before, and quote a value with \": \" in it"},
        {"a: - b\n", "1:4: no \"- \" can stand here"},
        {"a: 1\nb:2\nc: 3\n", "2:1: no \": \" follows this key"},
        {"x:\n  a: 1\n   b: 2\n", "3:5: no key can stand here"},
        {"a:\n    b: 1\n  c: 2\n", "3:3: expected a key; check the indentation, and quotes and brackets before it (in what starts at 1:1)"},
        {"a: \"x\" y\n", "1:8: expected a key"},
        {"  a: 1\nb: 2\n", "2:1: expected the end or ---; check the indentation"},
        {"- a\nb: 1\n", "2:1: expected \"- \"; check the indentation (in what starts at 1:1)"},
        {"a: [1, 2\nb: 3\n", "2:2: expected , or ] (in what starts at 1:4)"},
        {"a: {x: 1 y: 2}\n", "1:11: expected , or }"},
        {"a: [1,,2]\n", "1:7: expected a value"},
        {"ok: 1\nb: \"open\nc: 2\n", "2:4: this quote is never closed"},
        {"a: 'x\n---\n", "1:4: this quote is never closed"},
        {"a: \"C:\\data\"\n", "1:7: no such escape; write \\\\ for a backslash"},
        {"a: \"C:\\Users\"\n", "1:9: expected a hexadecimal digit"},
        {"a: \"\\ud83d\"\n", "1:7: no character has this code"},
        {"a: | x\n  y\n", "1:6: the text of | and > starts on the next line"},
        {"path: *.jsonl\n", "1:7: * and & start a name of letters"},
        {"a: &a x\nb:\n  <<: *a\n", "3:3: << is a value; expected a mapping, as *name, or a list of mappings"},
        {"b: {<<: [{x: 1}, [2]]}\n", "1:5: << is a list; expected a mapping, as *name, or a list of mappings"},
        {"path: *jsonl\n", "1:7: no anchor &jsonl before this alias; quote a text that starts with *"},
        {"\xEF\xBB\xBF"
         "a: @x\n",
         "1:4: a value can't start with @; quote it"},
        {"\u00e9: !!str 5\n", "1:4: YAML tags"},
        {"a: !e!x 5\n", "1:4: YAML tags"},
        {"%TAG !e! x\n---\na: 1\n", "1:1: YAML tags"},
        {"%YAML 3.0\n---\na: 1\n", "1:1: found incompatible YAML document"},
        {"%FOO x\n---\na: 1\n", "1:5: found unknown directive name, while scanning a directive"},
        {"a: 1\n---\nb: 2\n", "2:1: a second YAML document"},
        {"ok: 1\nb: \xc3\xa9\xff\n", "2:5: the byte 0xff is no UTF-8 text"},
        {"a: 1\r\nb: \x01\r\n", "2:4: the character U+0001"},
        {"a: 1\rb: \xe2\x80\xa8\n", "2:4: the character U+2028 isn't read; leave it out, or write \\u2028 in double quotes"},
    };
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        YamlNode *root;
        char      expected[200];
        snprintf(expected, sizeof expected, "r.yaml:%s", mistakes[i][1]);
        EXPECT_FAILS(parse(mistakes[i][0], &root), ERR_INVALID, expected);
    }
}

static void written_strings_read_back(void)
{
    static const char text[] = "\"\\ a\n\r\t\x01\x7f\xc2\x85\xc2\xa0\xe2\x80\xa8\xef\xbf\xbe\xef\xbb\xbf\xf0\x9f\x98\x80";
    StrBuf            out = {0};
    YamlNode         *root;
    yaml_write_string(&out, text, strlen(text));
    EXPECT_OK(yaml_parse(&arena, "w", out.data, out.len, &root));
    EXPECT_STR(root->text.data, text);
    strbuf_clear(&out);
    yaml_write_string(&out, "\xff", 1);
    EXPECT_STR(out.data, "\"\xef\xbf\xbd\"");
    strbuf_deinit(&out);
}

static void depth_and_size_are_bounded(void)
{
    StrBuf    text = {0};
    YamlNode *root;
    for (int i = 0; i < 40; i++) strbuf_putc(&text, '[');
    for (int i = 0; i < 40; i++) strbuf_putc(&text, ']');
    EXPECT_FAILS(yaml_parse(&arena, "d", text.data, text.len, &root), ERR_INVALID, "nested deeper than 32");
    strbuf_clear(&text);
    for (int i = 0; i < 100000; i++) strbuf_putc(&text, '[');
    EXPECT(yaml_parse(&arena, "d", text.data, text.len, &root) == ERR_INVALID);
    strbuf_clear(&text);
    strbuf_puts(&text, "a: [");
    for (int i = 0; i < 100001; i++) strbuf_puts(&text, "1,");
    strbuf_putc(&text, ']');
    EXPECT_FAILS(yaml_parse(&arena, "d", text.data, text.len, &root), ERR_INVALID, "more than 100000 values");
    strbuf_clear(&text);
    for (int i = 0; i <= YAML_MAX_ANCHORS; i++) strbuf_printf(&text, "- &a%d x\n", i);
    EXPECT_FAILS(yaml_parse(&arena, "d", text.data, text.len, &root), ERR_INVALID, "d:257:3: more than 256 anchors");
    strbuf_clear(&text);
    strbuf_puts(&text, "a: b");
    for (int i = 0; i < YAML_MAX_BLANKS; i++) strbuf_putc(&text, i % 2 ? ' ' : '\n');
    EXPECT_OK(yaml_parse(&arena, "d", text.data, text.len, &root));
    strbuf_puts(&text, "\t");
    EXPECT_FAILS(yaml_parse(&arena, "d", text.data, text.len, &root), ERR_INVALID, "d:5001:2: more than 10000 blanks");
    strbuf_reserve(&text, 2 << 20);
    memset(text.data, ' ', 2 << 20);
    EXPECT_FAILS(yaml_parse(&arena, "d", text.data, 2 << 20, &root), ERR_INVALID, "run files of up to");
    strbuf_deinit(&text);
}

TEST_MAIN(TEST(trees_have_positions), TEST(texts_are_what_users_mean), TEST(empty_documents_are_empty_mappings),
          TEST(aliases_share_the_node), TEST(merge_keys_give_keys_that_are_missing), TEST(what_is_no_yaml_is_an_error_with_its_place),
          TEST(mistakes_are_said_where_they_are), TEST(written_strings_read_back), TEST(depth_and_size_are_bounded))
