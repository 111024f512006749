/* Status, strings, arena, dtypes, random words and the thread pool. */
#include "base/arena.h"
#include "base/cgroup.h"
#include "base/dtype.h"
#include "base/log.h"
#include "base/philox.h"
#include "base/pool.h"
#include "base/sha256.h"
#include "base/strbuf.h"
#include "test.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

static Status fails(int code)
{
    FAIL_IF(code == 1, ERR_INVALID, "first %d", code);
    FAIL(ERR_IO, "second %s", "x");
}

static Status passes_on(int code)
{
    TRY(fails(code));
    return OK;
}

static void failures_carry_a_message(void)
{
    EXPECT_FAILS(passes_on(1), ERR_INVALID, "first 1");
    EXPECT_FAILS(passes_on(2), ERR_IO, "second x");
    EXPECT_INT(status_prefix(ERR_IO, "file %d", 3), ERR_IO);
    EXPECT_STR(status_message(), "file 3: second x");
    char longest[6000];
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = 0;
    (void)status_fail(ERR_IO, "%s", longest);
    EXPECT_INT(strlen(status_message()), STATUS_MESSAGE_BYTES - 1);
    (void)status_prefix(ERR_IO, "p");
    EXPECT_INT(strlen(status_message()), STATUS_MESSAGE_BYTES - 1);
    EXPECT(strncmp(status_message(), "p: aaa", 6) == 0);
    (void)status_fail(ERR_IO, "cut: %.4s, \u6f22, \xe9.txt, %.1s", "a\u6f22\u5b57",
                      "\U0001f600"); /* a character that is cut becomes '?'; whole characters and stray bytes stay */
    EXPECT_STR(status_message(), "cut: a\u6f22, \u6f22, ?.txt, ?");
    (void)status_fail(ERR_IO, "cut: %.3s|%.5s|\x80\xff", "a\u6f22\u5b57", "a\u6f22\u5b57");
    EXPECT_STR(status_message(), "cut: a?|a\u6f22?|\x80\xff");
    (void)status_fail(ERR_IO, "%s", "a\033]0;title\a\tb\nc\177\302\2332J\r");
    EXPECT_STR(status_message(), "a\\x1b]0;title\\x07\tb\nc\\x7f\\u009b2J\\x0d");
    for (size_t i = 0; i + 3 < sizeof longest; i += 3) memcpy(longest + i, "\u6f22", 3);
    (void)status_fail(ERR_IO, "%s", longest);
    EXPECT(memcmp(status_message() + strlen(status_message()) - 3, "\u6f22", 3) == 0 ||
           status_message()[strlen(status_message()) - 1] == '?');
    status_clear();
    EXPECT_STR(status_message(), "");
    EXPECT_INT(status_exit_code(ERR_NO_FIT), 3);
}

static void arenas_give_zeroed_aligned_memory(void)
{
    Arena arena = {0};
    for (size_t bytes = 0; bytes < 3000000; bytes = bytes * 3 + 1) {
        unsigned char *data = arena_alloc(&arena, bytes);
        EXPECT_INT((uintptr_t)data % 16, 0);
        for (size_t i = 0; i < bytes; i += 101) EXPECT_INT(data[i], 0);
        memset(data, 0xAB, bytes);
    }
    arena_reset(&arena);
    EXPECT_INT(arena.used_bytes, 0);
    EXPECT_INT(*(char *)arena_alloc(&arena, 100), 0);
    EXPECT_STR(arena_printf(&arena, "%d-%s", 7, "x"), "7-x");
    EXPECT_STR(arena_strndup(&arena, "abcdef", 3), "abc");
    arena_deinit(&arena);
}

static void strings_grow(void)
{
    StrBuf text = {0};
    EXPECT_STR(strbuf_cstr(&text), "");
    for (int i = 0; i < 1000; i++) strbuf_printf(&text, "%d,", i);
    EXPECT_INT(text.len, 3890);
    EXPECT(strncmp(text.data, "0,1,2,", 6) == 0);
    EXPECT(str_equal(str_of("abc"), "abc"));
    EXPECT(!str_equal(str_of("ab"), "abc"));
    strbuf_deinit(&text);
    const char *names[] = {"sequence_len", "seed", "save_steps"};
    EXPECT_STR(nearest_name("sequence_length", names, 3), "sequence_len");
    EXPECT_STR(nearest_name("sede", names, 3), "seed");
    EXPECT(!nearest_name("quite_another", names, 3));
    EXPECT_INT(edit_distance("abcd", "abdc"), 1);
    EXPECT_INT(edit_distance("", "abc"), 3);
}

/* Edit distance by its definition: insert, delete or replace a letter, or swap two neighbours, neither of which is edited again. */
static int slow_distance(const char *a, size_t m, const char *b, size_t n)
{
    if (m == 0 || n == 0) return (int)(m + n);
    int best = slow_distance(a, m - 1, b, n - 1) + (a[m - 1] != b[n - 1]), less = slow_distance(a, m - 1, b, n) + 1;
    int more = slow_distance(a, m, b, n - 1) + 1, swapped = best;
    if (m > 1 && n > 1 && a[m - 1] == b[n - 2] && a[m - 2] == b[n - 1]) swapped = slow_distance(a, m - 2, b, n - 2) + 1;
    best = less < best ? less : best;
    best = more < best ? more : best;
    return swapped < best ? swapped : best;
}

/* Texts over few letters, so that many pairs are near each other. */
static void edits_are_counted_as_defined(void)
{
    char     text[2][8];
    uint64_t state = 1;
    int      near = 0;
    for (int round = 0; round < 3000; round++) {
        for (int i = 0; i < 2; i++) {
            size_t len = (state >> 33) % 7;
            for (size_t k = 0; k <= len; k++) {
                state = state * 6364136223846793005u + 1442695040888963407u;
                text[i][k] = k < len ? "abc"[(state >> 33) % 3] : 0;
            }
        }
        int want = slow_distance(text[0], strlen(text[0]), text[1], strlen(text[1]));
        EXPECT_INT(edit_distance(text[0], text[1]), want);
        near += want < 3;
    }
    EXPECT(near > 300 && near < 2700);
    EXPECT_INT(edit_distance("0123456789012345678901234567890123456789012345678901234567890123456789", "0123456789"), 53);
    EXPECT_INT(edit_distance("9", "0123456789012345678901234567890123456789012345678901234567890123456789"), 62);
}

static void bf16_rounds_to_nearest_even(void)
{
    EXPECT_INT(bf16_from_f32(1.0f), 0x3F80);
    EXPECT_INT(bf16_from_f32(1.0f + 0x1p-8f), 0x3F80); /* a tie, rounded to even */
    EXPECT_INT(bf16_from_f32(1.0f + 3 * 0x1p-8f), 0x3F82);
    EXPECT_INT(bf16_from_f32(1.0f + 0x1.1p-8f), 0x3F81);
    EXPECT_INT(bf16_from_f32(INFINITY), 0x7F80);
    EXPECT_INT(bf16_from_f32(3.4e38f), 0x7F80);
    EXPECT(isnan(bf16_to_f32(bf16_from_f32(NAN))));
    for (uint32_t bits = 0; bits < 0x10000; bits++) {
        float value = bf16_to_f32((uint16_t)bits);
        if (!isnan(value)) EXPECT_INT(bf16_from_f32(value), bits);
    }
}

static void stochastic_rounding_has_no_bias(void)
{
    enum { COUNT = 1 << 16 };
    float  value = 1.0f + 0.25f * 0x1p-7f;
    double sum = 0;
    for (uint32_t i = 0; i < COUNT; i++) sum += (double)bf16_to_f32(bf16_from_f32_stochastic(value, i)) - 1.0;
    EXPECT_NEAR(sum / COUNT / 0x1p-7, 0.25, 1e-4);
    EXPECT_INT(bf16_from_f32_stochastic(INFINITY, 0xFFFF), 0x7F80);
    EXPECT(isnan(bf16_to_f32(bf16_from_f32_stochastic(NAN, 0xFFFF))));
}

static void dtypes_have_names(void)
{
    DType dtype;
    EXPECT(dtype_parse("bfloat16", &dtype) && dtype == DT_BF16);
    EXPECT(dtype_parse("torch.float32", &dtype) && dtype == DT_F32);
    EXPECT(dtype_parse("fp32", &dtype) && dtype == DT_F32);
    EXPECT(!dtype_parse("f33", &dtype));
    for (int i = 0; i < DT_COUNT; i++) EXPECT(dtype_parse(dtype_info((DType)i)->name, &dtype) && dtype == (DType)i);
    float    in[3] = {1, -2.5f, 3}, out[3];
    uint16_t half[3];
    dtype_convert(half, DT_BF16, in, DT_F32, 3);
    dtype_convert(out, DT_F32, half, DT_BF16, 3);
    EXPECT(memcmp(in, out, sizeof in) == 0);
    dtype_convert(out, DT_F32, in, DT_F32, 2);
    EXPECT(out[1] == -2.5f);
}

/* Known answers of Random123's kat_vectors for philox4x32-10. */
static void philox_gives_the_published_words(void)
{
    Philox4 zero = philox4x32(0, 0, 0, 0, 0);
    EXPECT(zero.v[0] == 0x6627e8d5 && zero.v[1] == 0xe169c58d && zero.v[2] == 0xbc57ac4c && zero.v[3] == 0x9b00dbd8);
    Philox4 ones = philox4x32(~0u, ~0u, ~0u, ~0u, ~(uint64_t)0);
    EXPECT(ones.v[0] == 0x408f276d && ones.v[1] == 0x41c83b0e && ones.v[2] == 0xa20bc7c6 && ones.v[3] == 0x6d5451fd);
    Philox4 pi = philox4x32(0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0x299f31d0a4093822u);
    EXPECT(pi.v[0] == 0xd16cfe09 && pi.v[1] == 0x94fdcceb && pi.v[2] == 0x5001e420 && pi.v[3] == 0x24126ea1);
    EXPECT(philox_uniform(~0u) < 1.0f && philox_uniform(0) == 0.0f);
}

enum { MOST_TASKS = 5000 };
static int     counts[MOST_TASKS], used_workers[64];
static int64_t last_tasks[64];

static void count_task(void *context, int64_t task, int worker)
{
    __atomic_fetch_add(&counts[task], 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&used_workers[worker], *(int *)context, __ATOMIC_RELAXED);
}

static void ordered_task(void *context, int64_t task, int worker)
{
    EXPECT(task > last_tasks[worker]);
    last_tasks[worker] = task;
    count_task(context, task, worker);
}

static void every_task_runs_once(void)
{
    int one = 1;
    for (int workers = 1; workers <= 7; workers += 2) {
        ThreadPool *pool;
        EXPECT_OK(pool_create(workers, &pool));
        EXPECT_INT(pool_num_workers(pool), workers);
        memset(counts, 0, sizeof counts);
        int expected = 0;
        for (int job = 0; job < 300; job++) {
            int num_tasks = job < 4 ? job : job * 7 % 64;
            for (int t = 0; t < num_tasks; t++) expected++;
            (job % 2 ? pool_run : pool_run_in_order)(pool, num_tasks, count_task, &one);
            int sum = 0;
            for (int t = 0; t < 64; t++) sum += counts[t];
            EXPECT_INT(sum, expected);
            if (job % 100 == 99) usleep(2000); /* let the workers fall asleep */
        }
        memset(counts, 0, sizeof counts);
        pool_run(pool, MOST_TASKS, count_task, &one);
        for (int w = 0; w < workers; w++) last_tasks[w] = -1;
        pool_run_in_order(pool, MOST_TASKS, ordered_task, &one);
        for (int t = 0; t < MOST_TASKS; t++) EXPECT_INT(counts[t], 2);
        for (int w = workers; w < 64; w++) EXPECT_INT(used_workers[w], 0);
        pool_destroy(pool);
    }
    pool_run(NULL, 3, count_task, &one);
    EXPECT_INT(counts[2], 3);
    EXPECT_INT(pool_num_workers(NULL), 1);
    pool_destroy(NULL);
    ThreadPool *pool;
    EXPECT_FAILS(pool_create(-1, &pool), ERR_INVALID, "-1 threads");
    EXPECT_OK(pool_create(0, &pool));
    EXPECT(pool_num_workers(pool) >= 1);
    pool_destroy(pool);
}

static void write_text(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "w");
    EXPECT(file && fputs(text, file) >= 0);
    if (file) fclose(file);
}

static void quotas_make_up_cores(void)
{
    static const struct {
        const char *text;
        int         cores;
    } cases[] = {{"max 100000\n", INT_MAX}, {"200000 100000\n", 2}, {"150000 100000\n", 2},
                 {"5000 100000\n", 1},      {"100000", INT_MAX},    {"", INT_MAX},
                 {"0 100000", INT_MAX},     {"100000 0", INT_MAX},  {"9000000000000000000 1", INT_MAX}};
    char dir[] = "/tmp/surogate-test-XXXXXX", path[64], none[] = "/nonexistent";
    EXPECT(mkdtemp(dir) != NULL);
    EXPECT_INT(cgroup_quota_cores(dir, none), INT_MAX);
    snprintf(path, sizeof path, "%s/cpu", dir);
    EXPECT_INT(mkdir(path, 0700), 0);
    write_text(path, "cpu.cfs_quota_us", "-1\n");
    write_text(path, "cpu.cfs_period_us", "100000\n");
    EXPECT_INT(cgroup_quota_cores(dir, none), INT_MAX);
    write_text(path, "cpu.cfs_quota_us", "350000\n");
    EXPECT_INT(cgroup_quota_cores(dir, none), 4);
    write_text(path, "cpu.cfs_quota_us", "-1\n");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_text(dir, "cpu.max", cases[i].text);
        EXPECT_INT(cgroup_quota_cores(dir, none), cases[i].cores);
    }
    EXPECT(pool_usable_cores() >= 1);
    static const char *const names[] = {"cpu.max", "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us", "cpu", "."};
    for (int i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        EXPECT_INT(remove(i == 4 ? dir : path), 0);
    }
}

/* A group and all its ancestors have limits: the smallest one counts, whichever of them has it. */
static void the_least_of_all_groups_counts(void)
{
    static const char *const v2[] = {"", "/pods", "/pods/pod", "/pods/pod/job"};
    char                     dir[] = "/tmp/surogate-test-XXXXXX", path[128], groups[64];
    EXPECT(mkdtemp(dir) != NULL);
    snprintf(groups, sizeof groups, "%s/self", dir);
    write_text(dir, "self", "1:name=systemd:/x\n0::/pods/pod/job\n");
    for (int i = 1; i < 4; i++) {
        snprintf(path, sizeof path, "%s%s", dir, v2[i]);
        EXPECT_INT(mkdir(path, 0700), 0);
    }
    for (int least = 0; least < 4; least++) {
        for (int i = 0; i < 4; i++) {
            snprintf(path, sizeof path, "%s%s", dir, v2[i]);
            write_text(path, "cpu.max", i == least ? "300000 100000" : i % 2 ? "max 100000" : "700000 100000");
            write_text(path, "memory.max", i == least ? "1000000" : i % 2 ? "2000000" : "max");
        }
        EXPECT_INT(cgroup_quota_cores(dir, groups), 3);
        EXPECT_INT(cgroup_memory_limit(dir, groups), 1000000);
    }
    write_text(dir, "self", "0::/not/seen/here\n"); /* in a container, the process's own group is mounted as the root */
    write_text(dir, "cpu.max", "200000 100000");
    EXPECT_INT(cgroup_quota_cores(dir, groups), 2);
    write_text(dir, "self", "0::/../../other\n");
    EXPECT_INT(cgroup_quota_cores(dir, groups), 2);
    write_text(dir, "cpu.max", "max 100000");
    write_text(dir, "memory.max", "max");
    write_text(dir, "self", "5:cpuacct,cpu:/job\n4:memory:/job/step\n");
    static const char *const v1[] = {"/cpuacct,cpu", "/cpuacct,cpu/job", "/memory", "/memory/job", "/memory/job/step"};
    for (int i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s%s", dir, v1[i]);
        EXPECT_INT(mkdir(path, 0700), 0);
        write_text(path, "cpu.cfs_quota_us", i ? "-1" : "150000");
        write_text(path, "cpu.cfs_period_us", "100000");
        write_text(path, "memory.limit_in_bytes", i == 3 ? "4000000" : "9223372036854771712");
    }
    EXPECT_INT(cgroup_quota_cores(dir, groups), 2);
    EXPECT_INT(cgroup_memory_limit(dir, groups), 4000000);
    snprintf(path, sizeof path, "rm -r %s", dir);
    EXPECT_INT(system(path), 0);
}

static void log_lines_go_to_stderr(void)
{
    char path[] = "/tmp/surogate-test-XXXXXX", text[4096], expected[2100];
    int  fd = mkstemp(path), saved = dup(2);
    char longest[2000];
    memset(longest, 'x', sizeof longest);
    longest[sizeof longest - 1] = 0;
    dup2(fd, 2);
    log_info("info %d", 1);
    log_mute(true);
    log_info("hidden");
    log_mute(false);
    log_warn("w");
    log_error("%s", longest);
    EXPECT(!log_is_terminal());
    dup2(saved, 2);
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    snprintf(expected, sizeof expected, "info 1\nwarning: w\nerror: %s\n", longest);
    EXPECT_STR(text, expected);
    close(fd);
    close(saved);
    unlink(path);
}

static void find_gives_what_memmem_gives(void)
{
    char     text[200], what[80];
    uint64_t state = 1;
    for (int n = 0; n < 20000; n++) {
        size_t len = (size_t)(n % 200), size = 1 + (size_t)(n % 7 == 0 ? n / 7 % 80 : n % 4);
        for (size_t i = 0; i < len; i++) text[i] = "aab<"[(state = state * 6364136223846793005u + 1442695040888963407u) >> 62];
        for (size_t i = 0; i < size; i++)
            what[i] = n % 3 || size > len ? "ab<a"[(state = state * 6364136223846793005u + 1) >> 62] : text[len - size + i];
        const char *found = str_search((Str){text, len}, (Str){what, size});
        EXPECT(found == (len ? memmem(text, len, what, size) : NULL));
    }
    EXPECT(str_search((Str){text, 5}, (Str){"", 0}) == text);
}

static void expect_hex(const uint8_t bytes[SHA256_BYTES], const char *want)
{
    char text[2 * SHA256_BYTES + 1];
    for (int i = 0; i < SHA256_BYTES; i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    EXPECT_STR(text, want);
}

/* Examples of FIPS 180-4; cases 2 and 6 of RFC 4231. */
static void sha256_gives_the_published_sums(void)
{
    uint8_t sum[SHA256_BYTES], key[131];
    Sha256  sha;
    sha256_init(&sha);
    sha256_add(&sha, "abc", 3);
    sha256_end(&sha, sum);
    expect_hex(sum, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    sha256_init(&sha);
    for (int i = 0; i < 1000000; i += 40) sha256_add(&sha, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", 40);
    sha256_end(&sha, sum);
    expect_hex(sum, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, sum);
    expect_hex(sum, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    memset(key, 0xaa, sizeof key);
    hmac_sha256(key, sizeof key, "Test Using Larger Than Block-Size Key - Hash Key First", 54, sum);
    expect_hex(sum, "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    EXPECT(sha256_equal(sum, sum) && !sha256_equal(sum, key));
}

TEST_MAIN(TEST(find_gives_what_memmem_gives), TEST(failures_carry_a_message), TEST(arenas_give_zeroed_aligned_memory), TEST(strings_grow),
          TEST(bf16_rounds_to_nearest_even), TEST(stochastic_rounding_has_no_bias), TEST(edits_are_counted_as_defined),
          TEST(dtypes_have_names), TEST(philox_gives_the_published_words), TEST(every_task_runs_once), TEST(quotas_make_up_cores),
          TEST(the_least_of_all_groups_counts), TEST(log_lines_go_to_stderr), TEST(sha256_gives_the_published_sums))
