/* The safetensors reader with malicious files, the writer checked by the reader, and both on a full disk. */
#include "files/safetensors.h"
#include "test.h"

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

static Arena arena;

static const char *temp_dir(void)
{
    static char path[] = "/tmp/surogate-test-XXXXXX";
    static int  made;
    if (!made++ && !mkdtemp(path)) abort();
    return path;
}

static const char *in_dir(const char *name)
{
    return arena_printf(&arena, "%s/%s", temp_dir(), name);
}

/* Opens a file made of the header size, the header, and data_bytes zeros. pad: the header is padded with blanks to a multiple of 8. */
static Status open_text(const char *header, size_t data_bytes, int pad, StFile **out)
{
    size_t   len = strlen(header);
    uint64_t size = pad ? (len + 7) / 8 * 8 : len;
    char    *bytes = arena_alloc(&arena, 8 + size + data_bytes + 1);
    memcpy(bytes, &size, 8);
    memset(bytes + 8, ' ', size);
    memcpy(bytes + 8, header, len);
    return st_open_memory("t.safetensors", bytes, 8 + size + data_bytes, out);
}

static void a_plain_file_is_read(void)
{
    StFile *file;
    EXPECT_OK(open_text("{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[8,20]},"
                        "\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                        "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[20,24]},"
                        "\"z\":{\"dtype\":\"F64\",\"shape\":[3,0],\"data_offsets\":[24,24]},"
                        "\"f8\":{\"dtype\":\"F8_E4M3\",\"shape\":[3],\"data_offsets\":[24,27]}}",
                        27, 1, &file));
    EXPECT_INT(st_count(file), 5);
    EXPECT_STR(st_at(file, 0)->name, "b");
    const StTensor *b = st_find(file, "b"), *f8 = st_find(file, "f8");
    EXPECT_INT(b->ndim, 2);
    EXPECT_INT(b->dim[1], 3);
    EXPECT_INT(b->numel, 6);
    EXPECT_INT(b->bytes, 12);
    EXPECT_INT(st_find(file, "s")->numel, 1);
    EXPECT_INT(st_find(file, "z")->numel, 0);
    EXPECT(!st_find(file, "c"));
    EXPECT_STR(st_metadata(file, "format"), "pt");
    EXPECT(!st_metadata(file, "other"));
    DType dtype;
    EXPECT(st_dtype_to(b->dtype, &dtype) && dtype == DT_BF16);
    EXPECT(st_dtype_to(f8->dtype, &dtype) && dtype == DT_E4M3 && !st_dtype_is_float(f8->dtype));
    EXPECT(!st_dtype_to(ST_F64, &dtype));
    float value;
    EXPECT_FAILS(st_to_f32(f8, 0, 1, &value), ERR_UNSUPPORTED, "tensor \"f8\" is F8_E4M3");
    EXPECT_OK(st_check_range(f8, DT_F32));
    EXPECT_FAILS(st_require(file, "f9", &b), ERR_NOT_FOUND, "no tensor \"f9\" among its 5; the nearest is \"f8\"");
    EXPECT_OK(st_require(file, "a", &b));
    st_close(file);
    EXPECT_OK(open_text("{}", 0, 1, &file));
    EXPECT_INT(st_count(file), 0);
    EXPECT(!st_find(file, "a"));
    st_close(file);
}

#define T(name, dtype, shape, offsets) "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void malicious_headers_are_errors(void)
{
    static const struct {
        const char *header;
        size_t      data_bytes;
        const char *part;
    } cases[] = {
        {"{" T("a", "F32", "[2]", "[0,8]") "}", 4, "\"a\": its data ends at byte 8 but the file holds only 4 bytes"},
        {"{" T("a", "F32", "[2]", "[0,8]") "}", 12, "the last 4 bytes belong to no tensor: the file is longer than its header says"},
        {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[4,12]") "}", 12, "\"b\": its data overlaps that of \"a\""},
        {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[2]", "[0,8]") "}", 8, "overlaps"},
        {"{" T("a", "F32", "[2]", "[0,8]") "," T("b", "F32", "[1]", "[12,16]") "}", 16, "\"b\": 4 bytes before its data"},
        {"{" T("a", "F32", "[1]", "[4,8]") "}", 8, "4 bytes before its data"},
        {"{" T("a", "F32", "[2]", "[0,8]") "," T("a", "F32", "[2]", "[8,16]") "}", 16, "the key \"a\" occurs twice"},
        {"{" T("a", "F32", "[3]", "[0,8]") "}", 8, "span 8 bytes, but its dtype F32 and shape need 12"},
        {"{" T("a", "F32", "[2]", "[8,0]") "}", 8, "[8, 0] are no range"},
        {"{" T("a", "F32", "[2]", "[-8,0]") "}", 8, "are no range"},
        {"{" T("a", "F32", "[2]", "[0]") "}", 8, "no \"data_offsets\" of two integers"},
        {"{" T("a", "F32", "[2]", "[0,8.0]") "}", 8, "no \"data_offsets\" of two integers"},
        {"{" T("a", "F32", "[2]", "[0,18446744073709551615]") "}", 8, "no \"data_offsets\" of two integers"},
        {"{" T("a", "F32", "[2]", "[0,9223372036854775807]") "}", 8, "its data ends at byte"},
        {"{" T("a", "F31", "[2]", "[0,8]") "}", 8, "unknown dtype \"F31\""},
        {"{" T("a", "F32", "[-2]", "[0,8]") "}", 8, "dimension 0 of its shape is no integer >= 0"},
        {"{" T("a", "F32", "[2.0]", "[0,8]") "}", 8, "dimension 0 of its shape"},
        {"{" T("a", "F32", "[4294967296,4294967296]", "[0,8]") "}", 8, "its shape overflows"},
        {"{" T("a", "F32", "[4611686018427387904]", "[0,8]") "}", 8, "its size overflows"},
        {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", 8, "9 dimensions, at most 8"},
        {"{" T("a", "F32", "2", "[0,8]") "}", 8, "no \"shape\" array"},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, "no \"dtype\" string"},
        {"{\"a\":[1]}", 0, "\"a\": its header entry is no object"},
        {"{\"a\\u0000b\":{}}", 0, "its name holds a NUL"},
        {"{" T("a", "F4", "[3]", "[0,1]") "}", 1, "3 F4 elements don't fill whole bytes"},
        {"{\"__metadata__\":{\"k\":1}}", 0, "__metadata__ \"k\" is no string"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ is no object"},
        {"[]", 0, "doesn't start with '{'"},
        {" {}", 0, "doesn't start with '{'"},
        {"", 0, "doesn't start with '{'"},
        {"{\"a\":", 0, "t.safetensors: header:1:"},
        {"{}x", 0, "header:1:3"},
        {"{\"\xff\":1}", 0, "header:1:3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        StFile *file;
        EXPECT_FAILS(open_text(cases[i].header, cases[i].data_bytes, 1, &file), ERR_INVALID, cases[i].part);
    }
    StFile *file;
    EXPECT_FAILS(open_text("{" T("a", "F32", "[1]", "[0,4]") "} ", 3, 0, &file), ERR_INVALID, "the file is cut short");
    EXPECT_FAILS(open_text("{" T("a", "F32", "[1]", "[0,4]") "} ", 5, 0, &file), ERR_INVALID, "the last 1 bytes belong to no tensor");
    _Alignas(8) char huge[16] = {-1, -1, -1, -1, -1, -1, -1, 127, '{'};
    EXPECT_FAILS(st_open_memory("t", huge, 16, &file), ERR_INVALID, "not a safetensors file");
    _Alignas(8) char cut[16] = {100, 0, 0, 0, 0, 0, 0, 0, '{'};
    EXPECT_FAILS(st_open_memory("t", cut, 16, &file), ERR_INVALID, "cut short");
    EXPECT_FAILS(st_open_memory("t", cut, 7, &file), ERR_INVALID, "7 bytes, too short");
    EXPECT_FAILS(st_open("/nonexistent", &file), ERR_NOT_FOUND, "/nonexistent");
    EXPECT_FAILS(st_open(temp_dir(), &file), ERR_NOT_FOUND, "holds no model.safetensors");
}

/* Some writers neither pad the header nor sort tensors by element size, for example the writer of openai-community/gpt2's file. */
static void data_may_lie_anywhere(void)
{
    enum { N = 1200 };
    const char *header =
        "{" T("u", "U8", "[1]", "[0,1]") "," T("d", "F64", "[1200]", "[1,9601]") "," T("f", "F32", "[1200]", "[9601,14401]") "," T(
            "h", "F16", "[1200]", "[14401,16801]") "," T("b", "BF16", "[1200]", "[16801,19201]") "}";
    uint64_t size = strlen(header);
    for (int shift = 0; shift < 8; shift++) {
        char    *bytes = arena_alloc(&arena, 8 + size + 8 + 19201), *data = bytes + 8 + size + (size_t)shift;
        uint64_t padded = size + (uint64_t)shift;
        double   wide[N];
        float    single[N], got[N];
        uint16_t half[N], brain[N];
        StFile  *file;
        memset(bytes, ' ', 8 + size + 8);
        memcpy(bytes, &padded, 8);
        memcpy(bytes + 8, header, size);
        for (int i = 0; i < N; i++) wide[i] = single[i] = (float)(i - 600) / 8;
        dtype_encode(DT_F16, single, N, half);
        dtype_encode(DT_BF16, single, N, brain);
        memcpy(data + 1, wide, sizeof wide);
        memcpy(data + 9601, single, sizeof single);
        memcpy(data + 14401, half, sizeof half);
        memcpy(data + 16801, brain, sizeof brain);
        EXPECT_OK(st_open_memory("t", bytes, 8 + padded + 19201, &file));
        for (int t = 0; t < 4; t++) {
            const StTensor *tensor = st_find(file, (const char *[]){"d", "f", "h", "b"}[t]);
            EXPECT_OK(st_check_range(tensor, DT_F32));
            EXPECT_OK(st_to_f32(tensor, 3, N - 3, got));
            for (int i = 3; i < N; i++) EXPECT_NEAR(got[i - 3], single[i], t == 3 ? 0.3 : 0);
        }
        st_close(file);
    }
}

static void values_convert_to_float(void)
{
    uint16_t half[9] = {0x3C00, 0xC000, 0x0001, 0x7BFF, 0x0400, 0, 0x8000, 0x3555, 0x3C01};
    double   wide[2] = {0.1, -1e300};
    uint16_t brain[2] = {0x3F80, 0xC000};
    float    single[2] = {1.5f, -3}, got[9];
    StDecl   decls[] = {
          {"h", ST_F16, 1, {9}, half}, {"d", ST_F64, 1, {2}, wide}, {"b", ST_BF16, 1, {2}, brain}, {"s", ST_F32, 1, {2}, single}};
    const char *path = in_dir("values.safetensors");
    EXPECT_OK(st_write(path, decls, 4, NULL, NULL, NULL));
    StFile *file;
    EXPECT_OK(st_open(path, &file));
    EXPECT_OK(st_to_f32(st_find(file, "h"), 0, 9, got));
    float want[9] = {1, -2, 0x1p-24f, 65504, 0x1p-14f, 0, -0.0f, 0.333251953125f, 1.0009765625f};
    EXPECT(memcmp(got, want, sizeof want) == 0);
    EXPECT_OK(st_to_f32(st_find(file, "h"), 7, 2, got));
    EXPECT(got[0] == want[7] && got[1] == want[8]);
    EXPECT_OK(st_to_f32(st_find(file, "d"), 0, 2, got));
    EXPECT(got[0] == 0.1f && isinf(got[1]));
    EXPECT_OK(st_to_f32(st_find(file, "b"), 0, 2, got));
    EXPECT(got[0] == 1 && got[1] == -2);
    EXPECT_OK(st_to_f32(st_find(file, "s"), 1, 1, got));
    EXPECT(got[0] == -3);
    EXPECT_FAILS(st_check_range(st_find(file, "d"), DT_F32), ERR_INVALID, "tensor \"d\" holds -1e+300 at [1], which no float can hold");
    EXPECT_OK(st_check_range(st_find(file, "h"), DT_F32));
    st_close(file);
}

static void the_first_value_that_is_not_finite_is_named(void)
{
    float *values = arena_alloc(&arena, 3 * 5000 * sizeof(float));
    values[5000 + 17] = NAN;
    values[2 * 5000] = INFINITY;
    StDecl      decl = {"w", ST_F32, 2, {3, 5000}, values};
    const char *path = in_dir("nan.safetensors");
    EXPECT_OK(st_write(path, &decl, 1, NULL, NULL, NULL));
    StFile *file;
    EXPECT_OK(st_open(path, &file));
    EXPECT_FAILS(st_check_range(st_at(file, 0), DT_F32), ERR_INVALID, "tensor \"w\" holds NaN at [1, 17]");
    st_close(file);
}

static void values_beyond_a_format_are_named(void)
{
    uint16_t    half[2] = {0x3C00, 0xFC00};
    float       largest_bf16 = 0x1.FEp127f, wide[4] = {1, largest_bf16, -0x1.FEFFFEp127f, 0x1.FFp127f};
    StDecl      decls[] = {{"h", ST_F16, 1, {2}, half}, {"w", ST_F32, 2, {2, 2}, wide}, {"m", ST_F32, 1, {3}, wide}};
    const char *path = in_dir("range.safetensors");
    StFile     *file;
    EXPECT_OK(st_write(path, decls, 3, NULL, NULL, NULL));
    EXPECT_OK(st_open(path, &file));
    EXPECT_FAILS(st_check_range(st_find(file, "h"), DT_F32), ERR_INVALID, "tensor \"h\" holds an infinity at [1]; F16 ends at 65504");
    EXPECT_OK(st_check_range(st_find(file, "w"), DT_F32));
    EXPECT_FAILS(st_check_range(st_find(file, "w"), DT_BF16), ERR_INVALID,
                 "holds 3.39618e+38 at [1, 1], which bf16 can't hold; set model_dtype: fp32");
    EXPECT_OK(st_check_range(st_find(file, "m"), DT_BF16));
    st_close(file);
}

static Status count_up(void *context, size_t index, FileWriter *out)
{
    const StDecl *decls = context;
    size_t        bytes = st_decl_bytes(&decls[index]);
    for (size_t i = 0; i < bytes; i++) {
        unsigned char byte = (unsigned char)(index * 31 + i);
        TRY(file_writer_append(out, &byte, 1));
    }
    return OK;
}

static void expect_counted(const StFile *file, const StDecl *decls, size_t count)
{
    EXPECT_INT(st_count(file), count);
    for (size_t i = 0; i < count; i++) {
        const StTensor *tensor = st_find(file, decls[i].name);
        EXPECT(tensor != NULL);
        if (!tensor) continue;
        EXPECT_INT(tensor->bytes, st_decl_bytes(&decls[i]));
        EXPECT_INT(tensor->dtype, decls[i].dtype);
        EXPECT(memcmp(tensor->dim, decls[i].dim, (size_t)decls[i].ndim * 8) == 0);
        for (size_t b = 0; b < tensor->bytes; b++)
            if (((const unsigned char *)tensor->data)[b] != (unsigned char)(i * 31 + b)) {
                test_fail(__FILE__, __LINE__, "%s byte %zu differs", tensor->name, b);
                break;
            }
    }
}

static const StDecl mixed[] = {
    {"odd \"u8\"", ST_U8, 1, {3}, NULL}, {"f32", ST_F32, 2, {2, 5}, NULL}, {"bf16", ST_BF16, 3, {1, 2, 3}, NULL},
    {"i64", ST_I64, 0, {0}, NULL},       {"none", ST_F32, 1, {0}, NULL},   {"bool", ST_BOOL, 1, {5}, NULL},
};

static void two_tensors_of_one_name_are_not_written(void)
{
    static const float numbers[2] = {1, 2};
    const StDecl       decls[] = {
              {"a.weight", ST_F32, 1, {2}, numbers}, {"b.weight", ST_F32, 1, {2}, numbers}, {"a.weight", ST_F32, 1, {2}, numbers}};
    const char *path = in_dir("twice.safetensors"), *folder = in_dir("twice");
    EXPECT_FAILS(st_write(path, decls, 3, NULL, NULL, NULL), ERR_INVALID, "two tensors are named a.weight");
    EXPECT_FAILS(st_write_folder(folder, "model", decls, 3, 8, NULL, NULL), ERR_INVALID, "two tensors are named a.weight");
    EXPECT(access(path, F_OK) != 0 && access(folder, F_OK) != 0);
    EXPECT_OK(st_write(path, decls, 2, NULL, NULL, NULL));
}

static void what_is_written_is_read(void)
{
    const char       *path = in_dir("mixed.safetensors");
    const char *const metadata[] = {"a", "1\n", "b", "2", NULL};
    EXPECT_OK(st_write(path, mixed, 6, metadata, count_up, (void *)mixed));
    StFile *file;
    EXPECT_OK(st_open(path, &file));
    expect_counted(file, mixed, 6);
    EXPECT_STR(st_metadata(file, "a"), "1\n");
    EXPECT_STR(st_metadata(file, "b"), "2");
    st_close(file);
    uint64_t header;
    FileMap  map;
    EXPECT_OK(file_map(path, &map));
    memcpy(&header, map.data, 8);
    EXPECT_INT(header % 8, 0);
    file_unmap(&map);
}

static void folders_are_sharded_and_errors_name_the_shard(void)
{
    const char *folder = in_dir("sharded");
    StFile     *file;
    EXPECT_OK(st_write_folder(folder, "model", mixed, 6, SIZE_MAX, count_up, (void *)mixed));
    EXPECT(is_there(in_dir("sharded/model.safetensors")));
    EXPECT_OK(st_open(folder, &file));
    expect_counted(file, mixed, 6);
    EXPECT_STR(st_metadata(file, "format"), "pt");
    st_close(file);
    EXPECT_OK(st_write_folder(folder, "model", mixed, 6, 43, count_up, (void *)mixed));
    EXPECT(!is_there(in_dir("sharded/model.safetensors")));
    EXPECT(is_there(in_dir("sharded/model-00002-of-00002.safetensors")));
    EXPECT_OK(st_open(folder, &file));
    expect_counted(file, mixed, 6);
    st_close(file);
    const char *second = in_dir("sharded/model-00002-of-00002.safetensors");
    test_copy(second, in_dir("spare"));
    EXPECT_OK(file_remove_tree(second));
    EXPECT_FAILS(st_open(folder, &file), ERR_NOT_FOUND, "model-00002-of-00002.safetensors is missing");
    test_copy(in_dir("sharded/model-00001-of-00002.safetensors"), second);
    EXPECT_FAILS(st_open(folder, &file), ERR_INVALID, "is in both");
    test_copy(in_dir("values.safetensors"), second);
    EXPECT_FAILS(st_open(folder, &file), ERR_INVALID, "isn't in model-00002-of-00002.safetensors");
    test_copy(in_dir("spare"), second);
    EXPECT_OK(st_open(folder, &file));
    st_close(file);
    const char *index = in_dir("sharded/model.safetensors.index.json");
    const char *texts[][2] = {{"{}", "no \"weight_map\" object"},
                              {"{\"weight_map\":{\"a\":1}}", "\"a\" is no file name"},
                              {"{\"weight_map\":{\"a\":\"../x\"}}", "is no plain file name"},
                              {"{", "index.json:1:2"}};
    for (size_t i = 0; i < 4; i++) {
        EXPECT_OK(file_write_atomic(index, texts[i][0], strlen(texts[i][0])));
        EXPECT_FAILS(st_open(folder, &file), ERR_INVALID, texts[i][1]);
    }
    EXPECT_OK(st_write_folder(folder, "model", mixed, 6, SIZE_MAX, count_up, (void *)mixed));
    EXPECT(!is_there(index));
}

static void a_failed_write_leaves_the_old_file(void)
{
    static char   block[1 << 16];
    StDecl        decl = {"w", ST_U8, 1, {sizeof block}, block}, many[64];
    const char   *path = in_dir("full.safetensors");
    struct rlimit old, small = {3 << 20, 3 << 20};
    uint64_t      before, after;
    for (int i = 0; i < 64; i++) {
        many[i] = decl;
        many[i].name = arena_printf(&arena, "w%d", i);
    }
    EXPECT_OK(st_write(path, &decl, 1, NULL, NULL, NULL));
    EXPECT_OK(file_hash(path, &before));
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    small.rlim_max = old.rlim_max;
    setrlimit(RLIMIT_FSIZE, &small);
    EXPECT_FAILS(st_write(path, many, 64, NULL, NULL, NULL), ERR_IO, "full.safetensors: File too large");
    setrlimit(RLIMIT_FSIZE, &old);
    EXPECT_OK(file_hash(path, &after));
    EXPECT(before == after);
    EXPECT(!is_there(in_dir("full.safetensors.partial")));
    if (access("/dev/full", W_OK) != 0) return;
    EXPECT(symlink("/dev/full", in_dir("sink.partial")) == 0);
    EXPECT_FAILS(st_write(in_dir("sink"), many, 64, NULL, NULL, NULL), ERR_NO_FIT, "sink: No space left on device");
    EXPECT(!is_there(in_dir("sink")));
    EXPECT_FAILS(st_write(in_dir("absent/x"), many, 1, NULL, NULL, NULL), ERR_NOT_FOUND, "absent/x");
}

static void clean_up(void)
{
    EXPECT_OK(file_remove_tree(temp_dir()));
    EXPECT(!is_there(temp_dir()));
}

TEST_MAIN(TEST(a_plain_file_is_read), TEST(malicious_headers_are_errors), TEST(data_may_lie_anywhere), TEST(values_convert_to_float),
          TEST(the_first_value_that_is_not_finite_is_named), TEST(values_beyond_a_format_are_named),
          TEST(two_tensors_of_one_name_are_not_written), TEST(what_is_written_is_read), TEST(folders_are_sharded_and_errors_name_the_shard),
          TEST(a_failed_write_leaves_the_old_file), TEST(clean_up))
