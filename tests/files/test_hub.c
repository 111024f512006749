/* Pulling from a hub on loopback that misbehaves; no packet leaves this machine. */
#include "files/file.h"
#include "files/http.h"
#include "files/hub.h"

#include "files/hub_server.h"
#include "test.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

typedef struct Setup {
    HubServer  server;
    HubOptions options;
    char       cache[64], endpoint[64], token[16];
    StrBuf     dir;
} Setup;

static const char *const two_files[] = {"config.json", "*.safetensors", NULL};
static const char *const one_file[] = {"*.json", "!sub/*", NULL};
static const char *const below[] = {"sub/*", NULL};

static bool setup(Setup *s)
{
    Http *http;
    memset(s, 0, sizeof *s);
    strcpy(s->cache, "/tmp/surogate_hub_XXXXXX");
    strcpy(s->token, "hf_secret");
    if (http_open(&http) != OK) return false;
    http_close(http);
    if (!mkdtemp(s->cache) || !hub_start(&s->server)) abort();
    snprintf(s->endpoint, sizeof s->endpoint, "http://127.0.0.1:%d", s->server.hub_port);
    s->options = (HubOptions){
        .endpoint = s->endpoint, .cache = s->cache, .token = s->token, .timeout_s = 1, .etag_timeout_s = 5, .attempts = 4, .retry_ms = 1};
    return true;
}

static void teardown(Setup *s)
{
    hub_end(&s->server);
    EXPECT_OK(file_remove_tree(s->cache));
    strbuf_deinit(&s->dir);
}

#define SETUP(s) \
    static Setup s; \
    if (!setup(&s)) SKIP("libcurl isn't installed")

static Status pull(Setup *s, const char *const *patterns)
{
    strbuf_clear(&s->dir);
    return hub_pull(&s->options, HUB_MODEL, "org/tiny", NULL, patterns, &s->dir);
}

static int count_log(const Setup *s, const char *part)
{
    int count = 0;
    for (int i = 0; i < s->server.num_log; i++) count += strstr(s->server.log[i], part) != NULL;
    return count;
}

/* path below the snapshot (`dir`) or the cache's folder of the repository. */
static const char *in_dir(const Setup *s, const char *path, char buf[512])
{
    snprintf(buf, 512, "%s/%s", strbuf_cstr(&s->dir), path);
    return buf;
}

static const char *in_cache(const Setup *s, const char *path, char buf[512])
{
    snprintf(buf, 512, "%s/models--org--tiny/%s", s->cache, path);
    return buf;
}

static void expect_file(const char *path, const char *want, size_t len)
{
    Arena arena = {0};
    Str   text = {"", 0};
    EXPECT_OK(file_read(&arena, path, 1 << 20, &text));
    if (text.len != len || memcmp(text.data, want, len) != 0)
        test_fail(__FILE__, __LINE__, "%s: %zu bytes that aren't as expected", path, text.len);
    arena_deinit(&arena);
}

static void expect_large(const Setup *s)
{
    char buf[512];
    expect_file(in_dir(s, "model.safetensors", buf), s->server.large, HUB_LARGE_BYTES);
    EXPECT(!is_there(in_cache(s, "blobs/" HUB_LARGE_ETAG ".incomplete", buf)));
}

static void expect_link(const Setup *s, const char *file, const char *want)
{
    char buf[512], target[256] = "";
    EXPECT(readlink(in_dir(s, file, buf), target, sizeof target - 1) > 0);
    EXPECT_STR(target, want);
}

/* ---- what is right ---- */

static void the_cache_is_laid_out_as_others_expect(void)
{
    SETUP(s);
    char buf[512];
    EXPECT_OK(pull(&s, two_files));
    EXPECT_STR(strbuf_cstr(&s.dir), in_cache(&s, "snapshots/" HUB_COMMIT, buf));
    expect_large(&s);
    expect_file(in_dir(&s, "config.json", buf), HUB_SMALL, strlen(HUB_SMALL));
    expect_file(in_cache(&s, "refs/main", buf), HUB_COMMIT, 40);
    expect_link(&s, "config.json", "../../blobs/" HUB_SMALL_ETAG);
    expect_link(&s, "model.safetensors", "../../blobs/" HUB_LARGE_ETAG);
    EXPECT(!is_there(in_dir(&s, "sub", buf)));
    EXPECT_OK(pull(&s, below));
    expect_link(&s, "sub/dir/empty.json", "../../../../blobs/e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
    EXPECT_INT(bytes_of(in_dir(&s, "sub/dir/empty.json", buf)), 0);
    snprintf(buf, sizeof buf, "%s/.locks/models--org--tiny/" HUB_LARGE_ETAG ".lock", s.cache);
    EXPECT(is_there(buf));
    teardown(&s);
}

static void progress_is_one_line_that_goes_away(void)
{
    SETUP(s);
    char buf[512], text[4096] = "";
    int  kept = dup(STDERR_FILENO), file = open((snprintf(buf, sizeof buf, "%s/progress", s.cache), buf), O_RDWR | O_CREAT, 0600);
    dup2(file, STDERR_FILENO);
    s.options.progress = true;
    Status status = pull(&s, two_files);
    dup2(kept, STDERR_FILENO);
    EXPECT_OK(status);
    EXPECT(pread(file, text, sizeof text - 1, 0) > 0);
    EXPECT_CONTAINS(text, "org/tiny: downloading 2 of 2 files, 0.2 MB\n");
    EXPECT_CONTAINS(text, "\r\033[Kmodel.safetensors: 0.2 of 0.2 MB, 0.0 MB/s\r\033[K");
    close(file);
    close(kept);
    teardown(&s);
}

static void the_token_stays_with_the_hub(void)
{
    SETUP(s);
    EXPECT_OK(pull(&s, two_files));
    EXPECT_INT(count_log(&s, "/api/models/org/tiny/revision/main from 0 token Bearer hf_secret"), 1);
    EXPECT_INT(count_log(&s, "GET /org/tiny/resolve/" HUB_COMMIT "/model.safetensors from 0 token Bearer hf_secret"), 1);
    EXPECT_INT(count_log(&s, "cdn/cdn from 0 token none"), 1);
    EXPECT_INT(count_log(&s, "cdn/cdn"), 1);
    teardown(&s);
}

static void what_is_there_is_not_asked_for_again(void)
{
    SETUP(s);
    char buf[512];
    EXPECT_OK(pull(&s, two_files));
    s.server.num_log = 0;
    EXPECT_OK(pull(&s, two_files));
    EXPECT_INT(s.server.num_log, 1); /* only the listing is asked for: main may have moved */
    unlink(in_dir(&s, "model.safetensors", buf));
    EXPECT_OK(pull(&s, two_files)); /* the blob exists */
    EXPECT_INT(count_log(&s, "GET /org/tiny/resolve"), 0);
    expect_large(&s);
    unlink(in_cache(&s, "blobs/" HUB_LARGE_ETAG, buf)); /* the symbolic link now points nowhere */
    EXPECT_OK(pull(&s, two_files));
    expect_large(&s);
    teardown(&s);
}

static void datasets_and_revisions_have_their_own_paths(void)
{
    SETUP(s);
    char buf[512];
    EXPECT_OK(hub_pull(&s.options, HUB_DATASET, "org/rows", "refs/pr/1", one_file, &s.dir));
    EXPECT_INT(count_log(&s, "/api/datasets/org/rows/revision/refs%2Fpr%2F1 "), 1);
    EXPECT_INT(count_log(&s, "GET /datasets/org/rows/resolve/" HUB_COMMIT "/config.json "), 1);
    snprintf(buf, sizeof buf, "%s/datasets--org--rows/refs/refs/pr/1", s.cache);
    expect_file(buf, HUB_COMMIT, 40);
    strbuf_clear(&s.dir);
    EXPECT_OK(hub_pull(&s.options, HUB_MODEL, "org/tiny", HUB_COMMIT, one_file, &s.dir));
    EXPECT(!is_there(in_cache(&s, "refs", buf))); /* a commit needs no ref */
    strbuf_clear(&s.dir);
    s.options.offline = true;
    EXPECT_OK(hub_pull(&s.options, HUB_MODEL, "org/tiny", HUB_COMMIT, one_file, &s.dir));
    teardown(&s);
}

static void a_moved_repository_is_followed_with_the_token(void)
{
    SETUP(s);
    s.server.moved_to = "/new/name/resolve/" HUB_COMMIT "/config.json";
    EXPECT_OK(pull(&s, one_file));
    EXPECT_INT(count_log(&s, "/new/name/resolve/" HUB_COMMIT "/config.json from 0 token Bearer hf_secret"), 2);
    teardown(&s);
}

/* ---- what goes wrong and is mended ---- */

static void a_bad_connection_is_mended(void)
{
    static const struct {
        const char *what, *asked; /* asked: a request that must have been made */
        size_t      field;
        int         times, also_cut;
    } cases[] = {
        {"cut", "cdn/cdn from 100000 ", offsetof(HubServer, cut), 1, 0},
        {"cut often: more than the attempts, but each brings bytes", "cdn/cdn from 196875 ", offsetof(HubServer, cut), 7, 0},
        {"stalls", "cdn/cdn from 100000 ", offsetof(HubServer, stall), 1, 0},
        {"fewer bytes than announced", "cdn/cdn from 199900 ", offsetof(HubServer, short_body), 1, 0},
        {"ignores the range", "cdn/cdn from 100000 ", offsetof(HubServer, no_range), 2, 1},
        {"refuses the range", "cdn/cdn from 100000 ", offsetof(HubServer, range_refused), 1, 1},
        {"changes a byte", "cdn/cdn from 0 ", offsetof(HubServer, corrupt), 1, 0},
        {"is busy", "/api/", offsetof(HubServer, unavailable), 3, 0},
    };
    SETUP(s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        EXPECT_OK(file_remove_tree(s.cache));
        s.server.num_log = 0;
        s.server.cut = cases[i].also_cut;
        *(int *)(void *)((char *)&s.server + cases[i].field) = cases[i].times;
        Status status = pull(&s, two_files);
        if (status != OK) test_fail(__FILE__, __LINE__, "%s: %s", cases[i].what, status_message());
        if (!count_log(&s, cases[i].asked)) test_fail(__FILE__, __LINE__, "%s: nobody asked \"%s\"", cases[i].what, cases[i].asked);
        expect_large(&s);
        s.server.no_range = 0;
    }
    teardown(&s);
}

static void a_wait_that_the_hub_asks_for_is_told(void)
{
    SETUP(s);
    char  text[4096] = "";
    FILE *file = tmpfile();
    if (!file) abort();
    int before = dup(2);
    s.server.unavailable = s.server.retry_after = 1;
    fflush(stderr);
    dup2(fileno(file), 2);
    Status status = pull(&s, two_files);
    fflush(stderr);
    dup2(before, 2);
    close(before);
    EXPECT_OK(status);
    rewind(file);
    size_t len = fread(text, 1, sizeof text - 1, file);
    text[len] = 0;
    fclose(file);
    EXPECT_CONTAINS(text, "org/tiny: no answer yet; trying again in 1 s");
    teardown(&s);
}

static void an_earlier_run_is_taken_up(void)
{
    SETUP(s);
    char buf[512];
    s.options.attempts = 1;
    s.server.cut = 1;
    EXPECT_FAILS(pull(&s, two_files), ERR_IO, "model.safetensors (100000 bytes are kept; pull again to go on)");
    EXPECT(!is_there(in_cache(&s, "refs/main", buf))); /* offline runs must not take this for a whole snapshot */
    EXPECT_OK(pull(&s, two_files));
    EXPECT_INT(count_log(&s, "cdn/cdn from 100000 "), 1);
    expect_large(&s);
    teardown(&s);
}

static void an_earlier_rest_that_is_wrong_is_replaced(void)
{
    SETUP(s);
    char  buf[512];
    char *rest = calloc(1, HUB_LARGE_BYTES + 5);
    for (size_t len = HUB_LARGE_BYTES - 5; rest && len <= HUB_LARGE_BYTES + 5; len += 5) {
        EXPECT_OK(file_remove_tree(s.cache));
        EXPECT_OK(file_make_dirs(in_cache(&s, "blobs", buf)));
        EXPECT_OK(file_write_atomic(in_cache(&s, "blobs/" HUB_LARGE_ETAG ".incomplete", buf), rest, len));
        EXPECT_OK(pull(&s, two_files));
        expect_large(&s);
    }
    free(rest);
    teardown(&s);
}

static void another_process_is_waited_for(void)
{
    SETUP(s);
    char buf[512];
    snprintf(buf, sizeof buf, "%s/.locks/models--org--tiny", s.cache);
    EXPECT_OK(file_make_dirs(buf));
    strcat(buf, "/" HUB_LARGE_ETAG ".lock");
    EXPECT_OK(file_write_atomic(buf, "", 0));
    pid_t child = fork();
    if (child == 0) { /* the child pulls too: both must end with the whole file */
        StrBuf dir = {0};
        _exit(hub_pull(&s.options, HUB_MODEL, "org/tiny", NULL, two_files, &dir) != OK);
    }
    EXPECT_OK(pull(&s, two_files));
    int status = -1;
    waitpid(child, &status, 0);
    EXPECT_INT(status, 0);
    EXPECT_INT(count_log(&s, "cdn/cdn"), 1);
    expect_large(&s);
    teardown(&s);
}

static void an_unreachable_hub_leaves_the_cache(void)
{
    SETUP(s);
    EXPECT_OK(pull(&s, one_file));
    s.server.unavailable = 100;
    EXPECT_OK(pull(&s, one_file));
    EXPECT_FAILS(hub_pull(&s.options, HUB_MODEL, "org/other", NULL, NULL, &s.dir), ERR_IO, "org/other: the hub can't be reached: ");
    snprintf(s.endpoint, sizeof s.endpoint, "http://127.0.0.1:1"); /* no server listens there */
    EXPECT_OK(pull(&s, one_file));
    s.options.attempts = 2;
    EXPECT_FAILS(hub_pull(&s.options, HUB_MODEL, "org/other", NULL, NULL, &s.dir), ERR_IO,
                 "org/other: the hub can't be reached: http://127.0.0.1:1/api");
    teardown(&s);
}

/* ---- files whose ETag is no checksum ---- */

static const char *const plain_file[] = {"plain.txt", NULL};

/* All bytes must be of one version. */
static void expect_plain(const Setup *s, int version)
{
    static char want[HUB_LARGE_BYTES];
    char        buf[512];
    for (int i = 0; i < HUB_LARGE_BYTES; i++) want[i] = (char)(s->server.large[i] + version);
    expect_file(in_dir(s, "plain.txt", buf), want, HUB_LARGE_BYTES);
}

static void a_cut_download_goes_on_with_the_same_version(void)
{
    SETUP(s);
    s.server.cut = 2;
    EXPECT_OK(pull(&s, plain_file));
    expect_plain(&s, 0);
    EXPECT_INT(count_log(&s, "plain.txt from 100000 "), 1);
    teardown(&s);
}

static void a_replaced_file_is_not_spliced(void)
{
    for (int splices = 0; splices < 2; splices++) {
        SETUP(s);
        s.server.cut = 1;
        s.server.changes_in = 3; /* HEAD and the first part are of the old version */
        s.server.splices = splices;
        EXPECT_FAILS(pull(&s, plain_file), ERR_IO,
                     "was replaced while it was downloaded: its ETag is \"v1\" now, it was \"v0\"; pull again");
        EXPECT_OK(pull(&s, plain_file));
        expect_plain(&s, 1);
        teardown(&s);
    }
}

static void an_earlier_runs_part_of_a_replaced_file_is_left_alone(void)
{
    SETUP(s);
    s.server.cut = 1;
    s.options.attempts = 1;
    EXPECT_FAILS(pull(&s, plain_file), ERR_IO, "100000 bytes are kept; pull again to go on");
    s.server.version = 1;
    EXPECT_OK(pull(&s, plain_file));
    expect_plain(&s, 1);
    teardown(&s);
}

static void a_weak_etag_starts_over(void)
{
    SETUP(s);
    s.server.weak = true;
    s.server.cut = 1;
    EXPECT_OK(pull(&s, plain_file));
    expect_plain(&s, 0);
    EXPECT_INT(count_log(&s, "GET /org/tiny/resolve/" HUB_COMMIT "/plain.txt from 0 "), 2);
    teardown(&s);
}

static void a_body_without_an_end_is_not_taken_for_whole(void)
{
    SETUP(s);
    char buf[512];
    s.server.unframed = s.server.cut = 1;
    EXPECT_FAILS(pull(&s, plain_file), ERR_IO, "says neither how long the file is nor a checksum of it");
    EXPECT(!is_there(in_cache(&s, "blobs/v0", buf)));
    s.server.unframed = 0;
    EXPECT_OK(pull(&s, plain_file));
    expect_plain(&s, 0);
    teardown(&s);
}

/* ---- what stays wrong ---- */

static void lasting_faults_are_errors(void)
{
    static const struct {
        size_t      field;
        const char *message;
    } cases[] = {
        {offsetof(HubServer, corrupt), "twice the bytes that came don't have the checksum " HUB_LARGE_ETAG},
        {offsetof(HubServer, long_body), "more bytes come than the 200000 announced"},
        {offsetof(HubServer, unavailable), "can't be reached: org/tiny: http://127.0.0.1"},
    };
    SETUP(s);
    char buf[512];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        *(int *)(void *)((char *)&s.server + cases[i].field) = 1000;
        EXPECT_FAILS(pull(&s, two_files), ERR_IO, cases[i].message);
        EXPECT(!is_there(in_cache(&s, "blobs/" HUB_LARGE_ETAG, buf)));
        *(int *)(void *)((char *)&s.server + cases[i].field) = 0;
    }
    s.server.cut = s.server.bad_start = 1;
    EXPECT_FAILS(pull(&s, two_files), ERR_IO, "asked for bytes from ");
    s.server.cut = 0;
    s.server.loops = true;
    EXPECT_FAILS(pull(&s, two_files), ERR_IO, "more than 10 redirects");
    teardown(&s);
}

static void refusals_say_what_to_do(void)
{
    static const struct {
        int         code;
        const char *error_code;
        Status      status;
        const char *message;
    } cases[] = {
        {401, "RepoNotFound", ERR_NOT_FOUND, "there is no such repository at http://127.0.0.1"},
        {401, "GatedRepo", ERR_NOT_FOUND, "accept its terms at http://127.0.0.1"},
        {403, "GatedRepo", ERR_NOT_FOUND, "/org/tiny with your account, then give a token of that account. Sent: the token that HF_TOKEN"},
        {403, NULL, ERR_NOT_FOUND, "access refused (403)"},
        {404, "RepoNotFound", ERR_NOT_FOUND, "org/tiny: not found at http://127.0.0.1"},
        {404, "RevisionNotFound", ERR_NOT_FOUND, "org/tiny has no revision main"},
        {400, NULL, ERR_IO, "answers 400"},
        {418, "Tea", ERR_IO, "answers 418: it says why"},
    };
    SETUP(s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        s.server.refuse = cases[i].code;
        s.server.error_code = cases[i].error_code;
        s.server.num_log = 0;
        EXPECT_FAILS(pull(&s, two_files), cases[i].status, cases[i].message);
        EXPECT(!strstr(status_message(), "hf_secret"));
        EXPECT_INT(s.server.num_log, 1); /* asking again wouldn't help */
    }
    s.options.token = NULL;
    s.server.refuse = 401;
    EXPECT_FAILS(pull(&s, two_files), ERR_NOT_FOUND, "Sent: no token (set HF_TOKEN");
    EXPECT_INT(count_log(&s, "token none"), 1);
    s.server.refuse = 0;
    s.server.error_code = NULL;
    EXPECT_FAILS(pull(&s, NULL), ERR_NOT_FOUND, "org/tiny: README.md: not found at"); /* listed, but missing */
    teardown(&s);
}

static void hostile_answers_are_refused(void)
{
    static const struct {
        const char *listing, *etag, *message;
    } cases[] = {
        {"{\"sha\": \"" HUB_COMMIT "\", \"siblings\": [{\"rfilename\": \"../../escape\"}]}", NULL,
         "a file name that leaves the folder: \"../../escape\""},
        {"{\"sha\": \"" HUB_COMMIT "\", \"siblings\": [{\"rfilename\": \"/etc/passwd\"}]}", NULL, "a file name that leaves the folder"},
        {"{\"sha\": \"" HUB_COMMIT "\", \"siblings\": [{\"rfilename\": \"a//b\"}]}", NULL, "a file name that leaves the folder"},
        {"{\"sha\": \"" HUB_COMMIT "\", \"siblings\": [{\"rfilename\": \"a\\nb\"}]}", NULL, "a file name that leaves the folder"},
        {"{\"sha\": \"../x\", \"siblings\": []}", NULL, "has no \"sha\" and \"siblings\""},
        {"{\"sha\": \"" HUB_COMMIT "\"}", NULL, "has no \"sha\" and \"siblings\""},
        {"<html>", NULL, "org/tiny: the hub's list of files:1:1"},
        {"{\"sha\": \"" HUB_COMMIT "\", \"siblings\": [{\"rfilename\": \"a.bin\"}, 3]}", NULL,
         "org/tiny has no file of a kind that is wanted here, among 2"},
        {"{\"sha\": \"" HUB_COMMIT "\", \"siblings\": [{\"rfilename\": \"config.json\"}]}", "\"../../x\"", "no usable ETag"},
        {"{\"sha\": \"" HUB_COMMIT "\", \"siblings\": [{\"rfilename\": \"config.json\"}]}", "", "no usable ETag"},
        {"{\"sha\": \"ffffffffffffffffffffffffffffffffffffffff\", \"siblings\": [{\"rfilename\": \"config.json\"}]}", NULL,
         "the server gives commit "},
    };
    SETUP(s);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        s.server.listing = cases[i].listing;
        s.server.small_etag = cases[i].etag;
        Status status = pull(&s, i < 6 ? NULL : one_file);
        if (status == OK || !strstr(status_message(), cases[i].message))
            test_fail(__FILE__, __LINE__, "case %zu gave \"%s\"", i, status == OK ? "OK" : status_message());
    }
    EXPECT(!is_there("/tmp/escape"));
    teardown(&s);
}

/* ---- offline ---- */

static void forbid_sockets(void)
{
    struct sock_filter rules[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                                  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 1),
                                  BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog  program = {sizeof rules / sizeof *rules, rules};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) _exit(99);
}

/* Exit code of a child that resolves by its environment and is killed at its first socket; -1: it was killed. */
static int resolve_without_sockets(const Setup *s, const char *repo)
{
    pid_t child = fork();
    if (child == 0) {
        StrBuf dir = {0};
        setenv("HF_HUB_CACHE", s->cache, 1);
        setenv("HF_ENDPOINT", s->endpoint, 1);
        forbid_sockets();
        _exit((int)hub_resolve(HUB_MODEL, repo, NULL, one_file, &dir));
    }
    int status = -1;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void offline_opens_no_socket(void)
{
    static const char *const variables[] = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"};
    SETUP(s);
    EXPECT_OK(pull(&s, one_file));
    for (int i = 0; i < 3; i++) {
        setenv(variables[i], i == 0 ? "1" : i == 1 ? "yes" : "TRUE", 1);
        int found = resolve_without_sockets(&s, "org/tiny");
        if (found == 99) SKIP("no seccomp here");
        EXPECT_INT(found, OK);
        EXPECT_INT(resolve_without_sockets(&s, "org/other"), ERR_NOT_FOUND);
        setenv(variables[i], "0", 1);
        EXPECT_INT(resolve_without_sockets(&s, "org/tiny"), -1); /* online it would have opened a socket */
        unsetenv(variables[i]);
    }
    s.options.offline = true;
    EXPECT_FAILS(hub_pull(&s.options, HUB_MODEL, "org/other", "v2", NULL, &s.dir), ERR_NOT_FOUND,
                 "org/other (revision v2) isn't in the cache /tmp/");
    teardown(&s);
}

static void clear_environment(void)
{
    static const char *const names[] = {"HF_HOME",
                                        "HF_HUB_CACHE",
                                        "HUGGINGFACE_HUB_CACHE",
                                        "HF_TOKEN",
                                        "HUGGING_FACE_HUB_TOKEN",
                                        "HF_TOKEN_PATH",
                                        "HF_ENDPOINT",
                                        "HF_HUB_OFFLINE",
                                        "TRANSFORMERS_OFFLINE",
                                        "HF_DATASETS_OFFLINE",
                                        "XDG_CACHE_HOME",
                                        "HF_HUB_DOWNLOAD_TIMEOUT",
                                        "HF_HUB_ETAG_TIMEOUT",
                                        "http_proxy",
                                        "all_proxy",
                                        "ALL_PROXY"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
}

int main(int argc, char **argv)
{
    static const TestCase cases[] = {
        TEST(the_cache_is_laid_out_as_others_expect),
        TEST(progress_is_one_line_that_goes_away),
        TEST(the_token_stays_with_the_hub),
        TEST(what_is_there_is_not_asked_for_again),
        TEST(datasets_and_revisions_have_their_own_paths),
        TEST(a_moved_repository_is_followed_with_the_token),
        TEST(a_bad_connection_is_mended),
        TEST(a_wait_that_the_hub_asks_for_is_told),
        TEST(an_earlier_run_is_taken_up),
        TEST(an_earlier_rest_that_is_wrong_is_replaced),
        TEST(another_process_is_waited_for),
        TEST(an_unreachable_hub_leaves_the_cache),
        TEST(a_cut_download_goes_on_with_the_same_version),
        TEST(a_replaced_file_is_not_spliced),
        TEST(an_earlier_runs_part_of_a_replaced_file_is_left_alone),
        TEST(a_weak_etag_starts_over),
        TEST(a_body_without_an_end_is_not_taken_for_whole),
        TEST(lasting_faults_are_errors),
        TEST(refusals_say_what_to_do),
        TEST(hostile_answers_are_refused),
        TEST(offline_opens_no_socket),
    };
    clear_environment();
    return test_run(cases, (int)(sizeof cases / sizeof cases[0]), argc, argv);
}
