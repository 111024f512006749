/* A unit test program: cases in a table, one line per failure, and a closing count that tools/run-tests adds up.
 *
 *   static void empty_text_gives_no_tokens(void) { EXPECT_INT(count(""), 0); }
 *   TEST_MAIN(TEST(empty_text_gives_no_tokens))
 */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Set if a sanitizer checks every access: tests that are only about numbers then do a part of their work, or skip it. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { TEST_IS_WATCHED = 1 };
#else
enum { TEST_IS_WATCHED = 0 };
#endif

typedef struct TestCase {
    const char *name;
    void (*run)(void);
} TestCase;

static int test_failures_of_case;
static int test_skipped_case;

#define TEST(fn) \
    { \
#fn, fn \
    }

__attribute__((format(printf, 3, 4), unused)) static void test_fail(const char *file, int line, const char *fmt, ...)
{
    if (++test_failures_of_case > 20) return;
    __builtin_va_list args;
    __builtin_va_start(args, fmt);
    fprintf(stderr, "%s:%d: ", file, line);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    __builtin_va_end(args);
}

__attribute__((unused)) static const char *const test_status_names[] = {
#define STATUS(code, exit_code) #code,
#include "base/status.def"
#undef STATUS
};

__attribute__((unused)) static bool is_there(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0;
}

__attribute__((unused)) static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

__attribute__((unused)) static long long bytes_of(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? (long long)info.st_size : -1;
}

#define EXPECT(cond) \
    do { \
        if (!(cond)) test_fail(__FILE__, __LINE__, "expected %s", #cond); \
    } while (0)
#define EXPECT_INT(got, want) \
    do { \
        long long got_ = (long long)(got), want_ = (long long)(want); \
        if (got_ != want_) test_fail(__FILE__, __LINE__, "%s is %lld, expected %lld", #got, got_, want_); \
    } while (0)
#define EXPECT_STR(got, want) \
    do { \
        const char *got_ = (got), *want_ = (want); \
        if (!got_ || strcmp(got_, want_) != 0) \
            test_fail(__FILE__, __LINE__, "%s is\n  \"%s\"\nexpected\n  \"%s\"", #got, got_ ? got_ : "(null)", want_); \
    } while (0)
#define EXPECT_CONTAINS(got, part) \
    do { \
        const char *got_ = (got), *part_ = (part); \
        if (!got_ || !strstr(got_, part_)) \
            test_fail(__FILE__, __LINE__, "%s is\n  \"%s\"\nexpected to contain\n  \"%s\"", #got, got_ ? got_ : "(null)", part_); \
    } while (0)
/* |got - want| <= tolerance; NaN fails. */
#define EXPECT_NEAR(got, want, tolerance) \
    do { \
        double got_ = (double)(got), want_ = (double)(want); \
        if (!(fabs(got_ - want_) <= (double)(tolerance))) \
            test_fail(__FILE__, __LINE__, "%s is %.9g, expected %.9g within %.3g", #got, got_, want_, (double)(tolerance)); \
    } while (0)
#define EXPECT_OK(expr) \
    do { \
        Status status_ = (expr); \
        if (status_ != OK) test_fail(__FILE__, __LINE__, "%s: %s", #expr, status_message()); \
    } while (0)
/* Fails with this status, and the message contains this part. */
#define EXPECT_FAILS(expr, status, part) \
    do { \
        Status status_ = (expr); \
        if (status_ != (status) || !strstr(status_message(), (part))) \
            test_fail(__FILE__, __LINE__, "%s gave %s \"%s\", expected %s \"...%s...\"", #expr, test_status_names[status_], \
                      status_ == OK ? "" : status_message(), test_status_names[status], (part)); \
    } while (0)
/* Leaves the case, which is counted as skipped, with the reason. */
#define SKIP(reason) \
    do { \
        fprintf(stderr, "skipped: %s: %s\n", __func__, (reason)); \
        test_skipped_case = 1; \
        return; \
    } while (0)

/* Copies a file; the case fails if that fails. */
__attribute__((unused)) static void test_copy(const char *from, const char *to)
{
    FILE  *in = fopen(from, "rb"), *out = fopen(to, "wb");
    char   buffer[1 << 16];
    size_t n;
    bool   copied = in && out;
    while (copied && (n = fread(buffer, 1, sizeof buffer, in)) > 0) copied = fwrite(buffer, 1, n, out) == n;
    if (in) copied = !ferror(in) && fclose(in) == 0 && copied;
    if (out) copied = fclose(out) == 0 && copied;
    if (!copied) test_fail(__FILE__, __LINE__, "cannot copy %s to %s", from, to);
}

/* The folder of real test inputs beside a checkout; NULL: there is none (the case is then skipped). */
__attribute__((unused)) static const char *test_shared_dir(void)
{
    const char *dir = getenv("SUROGATE_TEST_SHARED");
    if (!dir) dir = "../shared";
    FILE *probe = NULL;
    char  path[4096];
    snprintf(path, sizeof path, "%s/data/SOURCES.md", dir);
    probe = fopen(path, "r");
    if (!probe) return NULL;
    fclose(probe);
    return dir;
}

/* argv[1], when given, runs only the cases whose name contains it. */
__attribute__((unused)) static int test_run(const TestCase *cases, int count, int argc, char **argv)
{
    int passed = 0, failed = 0, skipped = 0;
    for (int i = 0; i < count; i++) {
        if (argc > 1 && !strstr(cases[i].name, argv[1])) continue;
        test_failures_of_case = test_skipped_case = 0;
        cases[i].run();
        if (test_failures_of_case) {
            fprintf(stderr, "FAILED %s\n", cases[i].name);
            failed++;
        } else if (test_skipped_case) {
            skipped++;
        } else {
            passed++;
        }
    }
    printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
    return failed != 0;
}

#define TEST_MAIN(...) \
    int main(int argc, char **argv) \
    { \
        static const TestCase cases[] = {__VA_ARGS__}; \
        return test_run(cases, (int)(sizeof cases / sizeof cases[0]), argc, argv); \
    }
