/* Blocks of GGUF files compared with the blocks that the format's own tools make (tests/oracle/make_gguf.py), and the bytes of the
 * writer. */
#include "files/gguf.h"
#include "files/safetensors.h"
#include "test.h"

#include <unistd.h>

static Arena arena;

static const char *in_dir(const char *name)
{
    static char path[] = "/tmp/surogate-test-XXXXXX";
    static int  made;
    if (!made++ && !mkdtemp(path)) abort();
    return arena_printf(&arena, "%s/%s", path, name);
}

static const GgufType types[] = {
#define GGUF_TYPE(name, number, block, bytes) GGUF_##name,
#include "files/gguf.def"
#undef GGUF_TYPE
};
enum { NUM_TYPES = sizeof types / sizeof *types };

static bool is_searched(GgufType type)
{
    return type == GGUF_Q4_K || type == GGUF_Q5_K || type == GGUF_Q6_K;
}

static double squared_error(const float *a, const float *b, int64_t numel)
{
    double sum = 0;
    for (int64_t i = 0; i < numel; i++) sum += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    return sum;
}

static const StTensor *find(StFile *file, GgufType type, const char *end)
{
    return st_find(file, arena_printf(&arena, "%s%s", gguf_type_name(type), end));
}

static void compare_type(StFile *file, GgufType type)
{
    const StTensor *values = st_find(file, "values"), *blocks = find(file, type, ""), *decoded = find(file, type, ".decoded");
    int64_t         numel = values->numel, bytes = gguf_bytes(type, numel);
    if (type == GGUF_F32) return;
    EXPECT_INT((int64_t)blocks->bytes, bytes);
    uint8_t     *made = arena_array(&arena, uint8_t, bytes);
    float       *back = arena_array(&arena, float, numel);
    const float *theirs = decoded->data, *source = values->data;
    gguf_encode(type, source, numel, made);
    if (!is_searched(type) && memcmp(made, blocks->data, blocks->bytes) != 0)
        test_fail(__FILE__, __LINE__, "%s: other blocks than those of gguf", gguf_type_name(type));
    gguf_decode(type, blocks->data, numel, back);
    if (memcmp(back, theirs, (size_t)numel * sizeof *back) != 0 && squared_error(back, theirs, numel) != 0)
        test_fail(__FILE__, __LINE__, "%s: other values than those of gguf", gguf_type_name(type));
    gguf_decode(type, made, numel, back);
    double ours = squared_error(back, source, numel), reference = squared_error(theirs, source, numel);
    if (ours > 1.02 * reference)
        test_fail(__FILE__, __LINE__, "%s: squared error %g, llama.cpp's is %g", gguf_type_name(type), ours, reference);
}

static void blocks_are_those_of_the_formats_own_tools(void)
{
    StFile *file;
    EXPECT_OK(st_open("tests/fixtures/gguf.safetensors", &file));
    for (int i = 0; i < NUM_TYPES; i++) compare_type(file, types[i]);
    st_close(file);
}

static void any_bytes_decode(void)
{
    uint8_t block[GGUF_MOST_BLOCK * 4];
    float   values[GGUF_MOST_BLOCK];
    for (int i = 0; i < NUM_TYPES; i++) {
        for (int byte = 0; byte < 256; byte += 15) {
            memset(block, byte, sizeof block);
            gguf_decode(types[i], block, gguf_block(types[i]), values);
        }
    }
    EXPECT(!gguf_type_name(4) && !gguf_type_name(1000));
    EXPECT_STR(gguf_type_name(GGUF_Q4_K), "Q4_K");
}

static void values_at_the_edge_stay_finite(void)
{
    static const float edges[] = {0, -0.0f, 65504, -65504, 1e-38f, -1e-38f, 1e-45f, 6e-8f, 1};
    float              values[GGUF_MOST_BLOCK], back[GGUF_MOST_BLOCK];
    uint8_t            block[GGUF_MOST_BLOCK * 4];
    for (int kind = 0; kind < NUM_TYPES; kind++) {
        for (size_t e = 0; e < sizeof edges / sizeof *edges; e++) {
            for (int i = 0; i < GGUF_MOST_BLOCK; i++) values[i] = i % 3 ? edges[e] : edges[(e + 1) % (sizeof edges / sizeof *edges)];
            gguf_encode(types[kind], values, GGUF_MOST_BLOCK, block);
            gguf_decode(types[kind], block, GGUF_MOST_BLOCK, back);
            for (int i = 0; i < GGUF_MOST_BLOCK; i++)
                if (!isfinite(back[i])) test_fail(__FILE__, __LINE__, "%s: %g gives %g", gguf_type_name(types[kind]), values[i], back[i]);
        }
    }
}

/* ---- the writer ---- */

typedef struct Tensors {
    const float *values[2];
    size_t       bytes[2];
    Status       status; /* status of the second open */
} Tensors;

static Status append_values(void *context, size_t index, FileWriter *out)
{
    const Tensors *tensors = context;
    if (index == 1 && tensors->status != OK) return status_fail(tensors->status, "the second tensor can't be had");
    return file_writer_append(out, tensors->values[index], tensors->bytes[index]);
}

static Status write_two(const char *path, Status second)
{
    static const float a[6] = {1, 2, 3, 4, 5, 6}, b[3] = {7, 8, 9};
    const GgufDecl     decls[] = {{"a.weight", GGUF_F32, 2, {2, 3}}, {"b", GGUF_F32, 1, {3}}};
    Tensors            tensors = {{a, b}, {sizeof a, sizeof b}, second};
    GgufKeys           keys = {0};
    gguf_put_str(&keys, "name", str_of("x"));
    gguf_put_u32(&keys, "count", 7);
    gguf_put_bool(&keys, "is", true);
    gguf_put_f32s(&keys, "list", b, 3);
    Status status = gguf_write(path, &keys, decls, 2, append_values, &tensors);
    gguf_keys_deinit(&keys);
    return status;
}

static void a_file_has_the_formats_bytes(void)
{
    static const unsigned char head[] = "GGUF\3\0\0\0\2\0\0\0\0\0\0\0\4\0\0\0\0\0\0\0"
                                        "\4\0\0\0\0\0\0\0name\x08\0\0\0\1\0\0\0\0\0\0\0x"
                                        "\5\0\0\0\0\0\0\0count\4\0\0\0\7\0\0\0"
                                        "\2\0\0\0\0\0\0\0is\7\0\0\0\1"
                                        "\4\0\0\0\0\0\0\0list\x09\0\0\0\6\0\0\0\3\0\0\0\0\0\0\0\0\0\xe0\x40\0\0\0\x41\0\0\x10\x41"
                                        "\x08\0\0\0\0\0\0\0a.weight\2\0\0\0\3\0\0\0\0\0\0\0\2\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
                                        "\1\0\0\0\0\0\0\0b\1\0\0\0\3\0\0\0\0\0\0\0\0\0\0\0\x20\0\0\0\0\0\0";
    static const float         data[16] = {1, 2, 3, 4, 5, 6, 0, 0, 7, 8, 9};
    size_t                     len = sizeof head, start = (len + 31) / 32 * 32; /* the literal's own NUL is the last byte */
    Str                        text;
    EXPECT_OK(write_two(in_dir("two.gguf"), OK));
    EXPECT_OK(file_read(&arena, in_dir("two.gguf"), 1 << 20, &text));
    EXPECT_INT(text.len, start + sizeof data);
    if (text.len != start + sizeof data) return;
    EXPECT(memcmp(text.data, head, len) == 0);
    for (size_t i = len; i < start; i++) EXPECT_INT(text.data[i], 0);
    EXPECT(memcmp(text.data + start, data, sizeof data) == 0);
}

static void a_file_that_fails_leaves_what_was_there(void)
{
    EXPECT_FAILS(write_two(in_dir("none.gguf"), ERR_IO), ERR_IO, "the second tensor can't be had");
    EXPECT(!is_there(in_dir("none.gguf")) && !is_there(in_dir("none.gguf.partial")));
    EXPECT_OK(write_two(in_dir("two.gguf"), OK));
    long long bytes = bytes_of(in_dir("two.gguf"));
    EXPECT_FAILS(write_two(in_dir("two.gguf"), ERR_IO), ERR_IO, "the second tensor can't be had");
    EXPECT_INT(bytes_of(in_dir("two.gguf")), bytes);
}

/* ---- the reader ---- */

static void what_is_written_is_read(void)
{
    GgufFile *file;
    Str       text;
    double    number = 0, *list;
    bool      flag = false;
    size_t    count;
    EXPECT_OK(write_two(in_dir("two.gguf"), OK));
    EXPECT_OK(gguf_open(in_dir("two.gguf"), &file));
    EXPECT_INT(gguf_count(file), 2);
    EXPECT(gguf_get_str(file, "name", &text) && str_equal(text, "x"));
    EXPECT(gguf_get_number(file, "count", &number) && number == 7);
    EXPECT(gguf_get_bool(file, "is", &flag) && flag);
    EXPECT(gguf_get_numbers(&arena, file, "list", &list, &count) && count == 3 && list[2] == 9);
    EXPECT(!gguf_get_number(file, "name", &number) && !gguf_get_str(file, "count", &text) && !gguf_get_number(file, "none", &number));
    const GgufTensor *a = gguf_find(file, "a.weight");
    EXPECT(a && a->type == GGUF_F32 && a->ndim == 2 && a->dim[0] == 2 && a->dim[1] == 3 && a->numel == 6);
    float last = 0;
    if (a) memcpy(&last, (const char *)a->data + 20, 4);
    EXPECT(last == 6);
    EXPECT(gguf_find(file, "b") && !gguf_find(file, "c") && !gguf_find(file, ""));
    gguf_close(file);
}

/* Every file that ends early, or has a changed byte somewhere, opens or is refused. */
static void damaged_files_are_refused(void)
{
    GgufFile *file;
    Str       text;
    EXPECT_OK(write_two(in_dir("two.gguf"), OK));
    EXPECT_OK(file_read(&arena, in_dir("two.gguf"), 1 << 20, &text));
    for (size_t len = 0; len + GGUF_ALIGNMENT < text.len; len++) {
        char *copy = malloc_or_end(len + 1); /* an exact copy, so that a sanitizer sees reads beyond it */
        memcpy(copy, text.data, len);
        EXPECT_FAILS(gguf_open_memory("t.gguf", copy, len, &file), ERR_INVALID, "t.gguf");
        free(copy);
    }
    for (size_t at = 0; at < text.len; at++) {
        for (int value = 0; value < 256; value += 51) {
            char *copy = malloc_or_end(text.len);
            memcpy(copy, text.data, text.len);
            copy[at] = (char)value;
            if (gguf_open_memory("t.gguf", copy, text.len, &file) == OK) gguf_close(file);
            free(copy);
        }
    }
}

static Status open_changed(Str text, size_t at, char value)
{
    GgufFile *file;
    char     *copy = arena_strndup(&arena, text.data, text.len);
    copy[at] = value;
    return gguf_open_memory("t.gguf", copy, text.len, &file);
}

static void errors_say_what_is_wrong(void)
{
    Str text;
    EXPECT_OK(write_two(in_dir("two.gguf"), OK));
    EXPECT_OK(file_read(&arena, in_dir("two.gguf"), 1 << 20, &text));
    size_t entry = (size_t)((const char *)memmem(text.data, text.len, "a.weight", 8) - text.data) + 8;
    EXPECT_FAILS(open_changed(text, 0, 'X'), ERR_INVALID, "t.gguf is no GGUF file");
    EXPECT_FAILS(open_changed(text, 4, 9), ERR_UNSUPPORTED, "version 9 of GGUF; 2 and 3 are read");
    EXPECT_FAILS(open_changed(text, entry, 5), ERR_INVALID, "tensor a.weight: expected 1 to 4 dims");
    EXPECT_FAILS(open_changed(text, entry + 4, 0), ERR_INVALID, "its shape is empty or too large");
    EXPECT_FAILS(open_changed(text, entry + 20, 10), ERR_UNSUPPORTED, "is of GGUF's type 10; F32, F16");
    EXPECT_FAILS(open_changed(text, entry + 20, 8), ERR_INVALID, "its rows aren't whole blocks");
    EXPECT_FAILS(open_changed(text, entry + 24, 1), ERR_INVALID, "its data isn't aligned");
    EXPECT_FAILS(open_changed(text, entry + 25, 1), ERR_INVALID, "its data isn't in the file");
}

static void an_alignment_is_a_whole_number(void)
{
    static const char head[] = "GGUF\3\0\0\0" /* no tensors, one value */
                               "\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0\x11\0\0\0\0\0\0\0general.alignment\6\0\0\0";
    static const float values[] = {32.5f, 0, -32, 2097152};
    GgufFile          *file;
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        char bytes[sizeof head - 1 + sizeof(float)];
        memcpy(bytes, head, sizeof head - 1);
        memcpy(bytes + sizeof head - 1, &values[i], sizeof(float));
        EXPECT_FAILS(gguf_open_memory("t.gguf", bytes, sizeof bytes, &file), ERR_INVALID,
                     arena_printf(&arena, "general.alignment is %g; expected a whole number from 1 to 1048576", (double)values[i]));
    }
}

TEST_MAIN(TEST(blocks_are_those_of_the_formats_own_tools), TEST(any_bytes_decode), TEST(values_at_the_edge_stay_finite),
          TEST(a_file_has_the_formats_bytes), TEST(a_file_that_fails_leaves_what_was_there), TEST(what_is_written_is_read),
          TEST(damaged_files_are_refused), TEST(errors_say_what_is_wrong), TEST(an_alignment_is_a_whole_number))
