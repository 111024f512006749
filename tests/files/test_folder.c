/* Folders that appear whole or not at all. */
#include "files/file.h"
#include "files/folder.h"
#include "files/json_file.h"

#include "test.h"

#include <sys/stat.h>
#include <unistd.h>

static Arena arena;
static char  top[64];

static const char *in_top(const char *name)
{
    return arena_printf(&arena, "%s/%s", top, name);
}

static void begin(void)
{
    strcpy(top, "/tmp/surogate_folder_XXXXXX");
    EXPECT(mkdtemp(top) != NULL);
}

static void end(void)
{
    EXPECT_OK(file_remove_tree(top));
    arena_deinit(&arena);
}

static int64_t size_of(const char *path)
{
    int64_t out = -1;
    EXPECT_OK(file_size(path, &out));
    return out;
}

static void put(const char *dir, const char *name, const char *text)
{
    EXPECT_OK(file_write_atomic(arena_printf(&arena, "%s/%s", dir, name), text, strlen(text)));
}

static void a_new_folder_appears_at_the_end(void)
{
    FolderWriter w;
    begin();
    EXPECT_OK(folder_begin(&arena, in_top("a/b/"), &w));
    put(w.partial, "config.json", "{}");
    EXPECT(!is_there(in_top("a/b")));
    EXPECT_OK(folder_finish(&w, "config.json"));
    EXPECT(is_there(in_top("a/b/config.json")));
    EXPECT_INT(rmdir(in_top("a/.b.partial")), -1);
    end();
}

/* A kill leaves files in the hidden folder: the next writer removes them. */
static void what_was_left_is_removed(void)
{
    FolderWriter w;
    begin();
    EXPECT_OK(file_make_dirs(in_top(".m.partial/deep")));
    put(in_top(".m.partial"), "model.safetensors", "half");
    EXPECT_OK(folder_begin(&arena, in_top("m"), &w));
    put(w.partial, "config.json", "{}");
    EXPECT_OK(folder_finish(&w, "config.json"));
    EXPECT(!is_there(in_top("m/model.safetensors")) && !is_there(in_top("m/deep")));
    end();
}

static void a_folder_that_is_there_keeps_its_other_files(void)
{
    FolderWriter w;
    begin();
    EXPECT_OK(file_make_dirs(in_top("m/.partial")));
    EXPECT_OK(file_make_dirs(in_top("m/ir")));
    put(in_top("m"), "README.md", "mine");
    put(in_top("m"), "config.json", "old");
    EXPECT_OK(folder_begin(&arena, in_top("m"), &w));
    put(w.partial, "config.json", "{}");
    put(w.partial, "ir", "a file now");
    EXPECT_INT(size_of(in_top("m/config.json")), 3);
    EXPECT_OK(folder_finish(&w, "config.json"));
    EXPECT_INT(size_of(in_top("m/config.json")), 2);
    EXPECT_INT(size_of(in_top("m/README.md")), 4);
    EXPECT_INT(size_of(in_top("m/ir")), 10);
    EXPECT(!is_there(in_top("m/.partial")));
    end();
}

static void a_refusal_leaves_nothing(void)
{
    FolderWriter w;
    begin();
    EXPECT_OK(folder_begin(&arena, in_top("m"), &w));
    put(w.partial, "config.json", "{}");
    Status      status = status_fail(ERR_INVALID, "%s/config.json: bad, %s", w.partial, w.partial);
    const char *want = arena_printf(&arena, "%s/config.json: bad, %s", in_top("m"), in_top("m"));
    EXPECT_FAILS(folder_abandon(&w, status), ERR_INVALID, want);
    EXPECT_INT(rmdir(top), 0); /* succeeds only if `top` is empty */
    put("/tmp", strrchr(top, '/') + 1, "");
    EXPECT_FAILS(folder_begin(&arena, top, &w), ERR_INVALID, "is a file; expected the name of a new folder");
    end();
}

static void two_writers_of_one_folder_are_told(void)
{
    FolderWriter w, other;
    begin();
    EXPECT_OK(folder_begin(&arena, in_top("m"), &w));
    put(w.partial, "config.json", "{}");
    EXPECT_FAILS(folder_begin(&arena, in_top("m"), &other), ERR_INVALID, "another process is writing");
    EXPECT(is_there(arena_printf(&arena, "%s/config.json", w.partial)));
    EXPECT_OK(folder_finish(&w, "config.json"));
    end();
}

static Status make_config(void *context, const char *partial)
{
    int *calls = context;
    put(partial, "config.json", "{}");
    return ++*calls == 1 ? status_fail(ERR_INVALID, "%s: the first one fails", partial) : OK;
}

static void a_folder_is_made_once_and_again_after_a_failure(void)
{
    int calls = 0;
    begin();
    for (int i = 0; i < 3; i++) {
        Status status = folder_make_once(&arena, in_top("m"), "config.json", "waiting", make_config, &calls);
        EXPECT_INT(status, i == 0 ? ERR_INVALID : OK);
        EXPECT(is_there(in_top("m/config.json")) == (i > 0));
    }
    EXPECT_INT(calls, 2);
    end();
}

static bool is_wanted(const char *name)
{
    return name[0] == 'w';
}

static void names_that_are_wanted_are_removed(void)
{
    begin();
    EXPECT_OK(file_make_dirs(in_top("m/w/deep")));
    put(in_top("m"), "wide", "");
    put(in_top("m"), "other", "");
    EXPECT_OK(file_remove_in(in_top("m"), is_wanted));
    EXPECT(!is_there(in_top("m/w")) && !is_there(in_top("m/wide")) && is_there(in_top("m/other")));
    EXPECT_OK(file_remove_in(in_top("absent"), is_wanted));
    Status status = status_fail(ERR_INVALID, "the failure");
    file_remove_behind(in_top("m"));
    EXPECT(!is_there(in_top("m")));
    EXPECT_STR(status_message(), "the failure");
    EXPECT_INT(status, ERR_INVALID);
    end();
}

static void json_files_come_back(void)
{
    JsonValue v;
    begin();
    EXPECT_OK(json_file_read_if_there(&arena, in_top("a.json"), 100, &v));
    EXPECT_INT(v.type, JSON_NULL);
    EXPECT_FAILS(json_file_read(&arena, in_top("a.json"), 100, &v), ERR_NOT_FOUND, "a.json");
    put(top, "a.json", "{\"b\":[1]}");
    EXPECT_OK(json_file_read_if_there(&arena, in_top("a.json"), 100, &v));
    EXPECT_OK(json_file_write(in_top("b.json"), &v));
    EXPECT_INT(size_of(in_top("b.json")), (int64_t)strlen("{\n  \"b\": [\n    1\n  ]\n}\n"));
    EXPECT_FAILS(json_file_read(&arena, in_top("b.json"), 5, &v), ERR_INVALID, "larger than 5 bytes");
    put(top, "a.json", "{");
    EXPECT_FAILS(json_file_read(&arena, in_top("a.json"), 100, &v), ERR_INVALID, "a.json:1:");
    end();
}

/* Pipes, devices and folders are refused. A rename would replace a pipe or, with the rights of root, even /dev/null. */
static void only_files_are_replaced(void)
{
    struct stat info;
    begin();
    EXPECT_INT(mkfifo(in_top("pipe"), 0600), 0);
    EXPECT_INT(symlink("/dev/null", in_top("null")), 0);
    EXPECT_INT(mkdir(in_top("folder"), 0700), 0);
    EXPECT_FAILS(file_write_atomic("", "x", 1), ERR_INVALID, "the name of the file to write is empty");
    EXPECT_FAILS(file_write_atomic(in_top("pipe"), "x", 1), ERR_INVALID, "pipe is a pipe; expected the name of a file");
    EXPECT_FAILS(file_write_atomic(in_top("null"), "x", 1), ERR_INVALID, "null is a device; expected the name of a file");
    EXPECT_FAILS(file_write_atomic(in_top("folder"), "x", 1), ERR_INVALID, "folder is a folder; expected the name of a file");
    EXPECT(lstat(in_top("pipe"), &info) == 0 && S_ISFIFO(info.st_mode));
    EXPECT(lstat(in_top("null"), &info) == 0 && S_ISLNK(info.st_mode));
    EXPECT(!is_there(in_top("pipe.partial")) && !is_there(in_top("null.partial")));
    end();
}

TEST_MAIN(TEST(a_new_folder_appears_at_the_end), TEST(what_was_left_is_removed), TEST(a_folder_that_is_there_keeps_its_other_files),
          TEST(a_refusal_leaves_nothing), TEST(two_writers_of_one_folder_are_told), TEST(a_folder_is_made_once_and_again_after_a_failure),
          TEST(names_that_are_wanted_are_removed), TEST(json_files_come_back), TEST(only_files_are_replaced))
