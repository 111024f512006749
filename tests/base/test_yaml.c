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
    EXPECT_OK(parse("# run\nmodel: Qwen/Qwen3-0.6B\nlr: 2e-4\nlist:\n  - a\n  - 'b c'\nflow: {x: [1, \"2\\n\"], y: }\ntext: |\n  l1\n  l2\n",
                    &root));
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
    EXPECT(!root->items[2]->items[1]->is_plain);
    EXPECT_STR(root->items[3]->items[0]->items[1]->text.data, "2\n");
    EXPECT(yaml_is_null(root->items[3]->items[1]));
    EXPECT_STR(root->items[4]->text.data, "l1\nl2\n");
    EXPECT_STR(root->source, "r.yaml");
}

static void empty_documents_are_empty_mappings(void)
{
    const char *texts[] = { "", "# only a comment\n", "---\n", "~\n" };
    for (int i = 0; i < 4; i++) {
        YamlNode *root;
        EXPECT_OK(parse(texts[i], &root));
        EXPECT_INT(root->type, YAML_MAPPING);
        EXPECT_INT(root->count, 0);
    }
}

static void aliases_share_the_node(void)
{
    YamlNode *root;
    EXPECT_OK(parse("a: &x [1, 2]\nb: *x\nc: &y z\nd: *y\n", &root));
    EXPECT(root->items[0] == root->items[1]);
    EXPECT_STR(root->items[3]->text.data, "z");
    EXPECT_FAILS(parse("a: *x\n", &root), ERR_INVALID, "r.yaml:1:4: no anchor &x");
    EXPECT_FAILS(parse("a: &x [*x]\n", &root), ERR_INVALID, "inside of what it stands for");
    StrBuf text = { 0 };
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
    const char *bad[] = { "a: [1, 2", "a: {b", "a: \"x", "a: 'x", "a: b: c", "\ta: 1", "a: 1\n  b: 2\n", "- a\nb: 1\n", "a: @x", "%YAML x\n---\n",
                          "[1]]", "}", "a: !!str 5", "a: 1\n---\nb: 2\n", "a: \x01", "a: \xff", "\xed\xa0\x80", "\xe0\x80\x80", "\xf0\x80\x80\x80",
                          "\xf4\x90\x80\x80", "a\xc3", "a: \"\\0\"", "a: \xc3(" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        if (parse(bad[i], &root) != ERR_INVALID) test_fail(__FILE__, __LINE__, "accepted: %s", bad[i]);
        EXPECT_CONTAINS(status_message(), "r.yaml:");
    }
    EXPECT_FAILS(parse("ok: 1\nb: \"open\n", &root), ERR_INVALID, "r.yaml:2:");
    EXPECT_FAILS(parse("ok: 1\nb: \xc3\xa9\xff\n", &root), ERR_INVALID, "r.yaml:2:5: the byte 0xff");
    EXPECT_FAILS(parse("? a: 1\n  b: \t- x\n", &root), ERR_INVALID, "r.yaml:2:6: a tab between");
    EXPECT_FAILS(parse("? a:\t?", &root), ERR_INVALID, "r.yaml:1:5: a tab between");
    EXPECT_OK(parse("a: \"what ? now\"\nb:\tx\n", &root));
}

static void depth_and_size_are_bounded(void)
{
    StrBuf    text = { 0 };
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
    strbuf_reserve(&text, 2 << 20);
    memset(text.data, ' ', 2 << 20);
    EXPECT_FAILS(yaml_parse(&arena, "d", text.data, 2 << 20, &root), ERR_INVALID, "run files of up to");
    strbuf_deinit(&text);
}

TEST_MAIN(TEST(trees_have_positions), TEST(empty_documents_are_empty_mappings), TEST(aliases_share_the_node),
          TEST(what_is_no_yaml_is_an_error_with_its_place), TEST(depth_and_size_are_bounded))
