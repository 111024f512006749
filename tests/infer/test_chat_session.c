/* Turns and commands of a conversation. */
#include "files/file.h"
#include "infer/chat_session.h"

#include "test.h"

#include <unistd.h>

static ChatAct take(ChatSession *s, const char *line)
{
    StrBuf  say = {0};
    ChatAct act;
    EXPECT_OK(chat_session_take(s, line, &act, &say));
    strbuf_deinit(&say);
    return act;
}

/* Expects the messages: for each the first letter of its role, and its content. */
static void expect_messages(ChatSession *s, const char *want)
{
    const JsonValue *messages = chat_session_messages(s);
    StrBuf           got = {0};
    const char      *role, *content;
    for (uint32_t i = 0; i < messages->count; i++) {
        EXPECT(json_get_str(&messages->items[i], "role", &role) && json_get_str(&messages->items[i], "content", &content));
        strbuf_printf(&got, "%s%c:%s", i ? " " : "", role[0], content);
    }
    EXPECT_STR(strbuf_cstr(&got), want);
    strbuf_deinit(&got);
}

static void lines_are_turns(void)
{
    ChatSession *s = chat_session_create(NULL);
    expect_messages(s, "");
    EXPECT_INT(take(s, "one"), CHAT_ASK);
    expect_messages(s, "u:one");
    chat_session_answer(s, str_of("first"));
    EXPECT_INT(take(s, "//two"), CHAT_ASK);
    EXPECT_INT(chat_session_request(s), 1);
    expect_messages(s, "u:one a:first u:/two");
    chat_session_answer(s, str_of(""));
    expect_messages(s, "u:one a:first u:/two a:");
    EXPECT_INT(take(s, " \t"), CHAT_NOTHING);
    EXPECT_INT(take(s, ""), CHAT_NOTHING);
    expect_messages(s, "u:one a:first u:/two a:");
    EXPECT_INT(take(s, "/quit"), CHAT_QUIT);
    chat_session_destroy(s);
}

static void the_system_message_is_replaced_and_turns_stay(void)
{
    ChatSession *s = chat_session_create("be short");
    EXPECT_INT(take(s, "one"), CHAT_ASK);
    chat_session_answer(s, str_of("first"));
    expect_messages(s, "s:be short u:one a:first");
    EXPECT_INT(take(s, "/system  be long, please"), CHAT_NOTHING);
    expect_messages(s, "s:be long, please u:one a:first");
    take(s, "/system");
    expect_messages(s, "u:one a:first");
    take(s, "/system x");
    take(s, "/clear");
    expect_messages(s, "s:x");
    EXPECT_INT(take(s, "two"), CHAT_ASK);
    EXPECT_INT(chat_session_request(s), 1); /* draws differ from those of the first question */
    chat_session_destroy(s);
}

static void another_answer_takes_the_place_of_the_last(void)
{
    ChatSession *s = chat_session_create(NULL);
    ChatAct      act;
    StrBuf       say = {0};
    EXPECT_FAILS(chat_session_take(s, "/regenerate", &act, &say), ERR_INVALID, "there is no answer yet");
    take(s, "one");
    EXPECT_INT(chat_session_number(s), 0);
    chat_session_answer(s, str_of("first"));
    EXPECT_INT(take(s, "/regenerate"), CHAT_ASK);
    EXPECT_INT(chat_session_number(s), 1);
    EXPECT_INT(chat_session_request(s), 0);
    expect_messages(s, "u:one");
    chat_session_answer(s, str_of("other"));
    expect_messages(s, "u:one a:other");
    take(s, "/regenerate");
    chat_session_withdraw(s);
    expect_messages(s, "u:one a:other");
    EXPECT_INT(take(s, "/regenerate"), CHAT_ASK);
    EXPECT_INT(chat_session_number(s), 3);
    strbuf_deinit(&say);
    chat_session_destroy(s);
}

static void what_is_withdrawn_leaves_nothing(void)
{
    ChatSession *s = chat_session_create(NULL);
    take(s, "one");
    chat_session_withdraw(s);
    chat_session_withdraw(s);
    expect_messages(s, "");
    take(s, "two");
    chat_session_answer(s, str_of("second"));
    take(s, "three");
    chat_session_withdraw(s);
    expect_messages(s, "u:two a:second");
    chat_session_destroy(s);
}

static void the_oldest_turns_go_first(void)
{
    ChatSession *s = chat_session_create("x");
    char         question[] = "0";
    for (int i = 0; i < 20; i++) {
        question[0] = (char)('a' + i);
        take(s, question);
        if (i < 19) chat_session_answer(s, str_of("!"));
    }
    for (int i = 0; i < 18; i++) EXPECT(chat_session_drop_oldest(s));
    expect_messages(s, "s:x u:s a:! u:t");
    EXPECT(chat_session_drop_oldest(s));
    EXPECT(!chat_session_drop_oldest(s));
    expect_messages(s, "s:x u:t");
    EXPECT_INT(chat_session_request(s), 19);
    chat_session_answer(s, str_of("!"));
    EXPECT(!chat_session_drop_oldest(s));
    expect_messages(s, "s:x u:t a:!");
    chat_session_destroy(s);
}

static void dropped_turns_come_back_without_an_answer(void)
{
    ChatSession *s = chat_session_create(NULL);
    take(s, "one");
    chat_session_answer(s, str_of("first"));
    take(s, "two");
    EXPECT(chat_session_drop_oldest(s));
    expect_messages(s, "u:two");
    chat_session_withdraw(s);
    expect_messages(s, "u:one a:first");
    take(s, "three");
    EXPECT(chat_session_drop_oldest(s));
    chat_session_answer(s, str_of("third"));
    take(s, "/regenerate");
    EXPECT(!chat_session_drop_oldest(s));
    chat_session_withdraw(s);
    expect_messages(s, "u:three a:third");
    chat_session_destroy(s);
}

static void saved_messages_read_back(void)
{
    char         dir[] = "/tmp/chat_session_XXXXXX", line[128], path[64];
    Arena        arena = {0};
    JsonValue    value;
    Str          text = {0};
    StrBuf       say = {0};
    ChatAct      act;
    ChatSession *s = chat_session_create(NULL);
    EXPECT(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/my messages.json", dir);
    snprintf(line, sizeof line, "/save %s", path);
    take(s, "\"quoted\"\t\\");
    chat_session_answer(s, str_of("a\001b\n"));
    EXPECT_OK(chat_session_take(s, line, &act, &say));
    EXPECT_CONTAINS(strbuf_cstr(&say), "2 messages are in /tmp/");
    EXPECT_OK(file_read(&arena, path, 1 << 20, &text));
    EXPECT_OK(json_parse(&arena, path, text.data, text.len, &value));
    EXPECT_INT(value.count, 2);
    EXPECT_INT(json_get(&value.items[1], "content")->string.len, 4);
    EXPECT_STR(json_get(&value.items[0], "content")->string.data, "\"quoted\"\t\\");
    EXPECT_FAILS(chat_session_take(s, "/save", &act, &say), ERR_INVALID, "/save FILE");
    EXPECT_FAILS(chat_session_take(s, "/save /nowhere/at/all.json", &act, &say), ERR_NOT_FOUND, "/nowhere/at/all.json");
    expect_messages(s, "u:\"quoted\"\t\\ a:a\001b\n");
    EXPECT_OK(file_remove_tree(dir));
    strbuf_deinit(&say);
    arena_deinit(&arena);
    chat_session_destroy(s);
}

static void unknown_commands_change_nothing(void)
{
    ChatSession *s = chat_session_create(NULL);
    ChatAct      act;
    StrBuf       say = {0};
    EXPECT_FAILS(chat_session_take(s, "/regenrate", &act, &say), ERR_INVALID, "there is no command /regenrate, did you mean /regenerate?");
    EXPECT_FAILS(chat_session_take(s, "/", &act, &say), ERR_INVALID, "/help lists them");
    EXPECT_FAILS(chat_session_take(s, "/quit now", &act, &say), ERR_INVALID, "/quit takes nothing after it");
    EXPECT_OK(chat_session_take(s, "/help", &act, &say));
    EXPECT_INT(act, CHAT_NOTHING);
    EXPECT_CONTAINS(strbuf_cstr(&say), "/system TEXT  replaces the system message");
    expect_messages(s, "");
    strbuf_deinit(&say);
    chat_session_destroy(s);
}

TEST_MAIN(TEST(lines_are_turns), TEST(the_system_message_is_replaced_and_turns_stay), TEST(another_answer_takes_the_place_of_the_last),
          TEST(what_is_withdrawn_leaves_nothing), TEST(the_oldest_turns_go_first), TEST(dropped_turns_come_back_without_an_answer),
          TEST(saved_messages_read_back), TEST(unknown_commands_change_nothing))
