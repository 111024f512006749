/* See chat_session.h. */
#include "infer/chat_session.h"

#include "base/array.h"
#include "base/str.h"
#include "files/file.h"
#include "infer/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct Turn {
    char    *question;
    StrBuf   answer;
    bool     has_answer; /* `answer` is set; while the turn waits, it is an earlier answer */
    uint64_t request;
    uint32_t number;
} Turn;

struct ChatSession {
    char  *system; /* NULL: none */
    Turn  *turns;
    size_t num_turns, capacity;
    size_t num_dropped; /* oldest turns that are left out while the last turn waits; its answer frees them */
    bool   is_waiting;  /* the last turn waits for an answer */
    size_t num_asked;   /* turns asked since the session began */
    Arena  arena;       /* for the list of messages */
};

static char *copy_text(const char *text)
{
    size_t len = strlen(text);
    char  *copy = malloc_or_end(len + 1);
    memcpy(copy, text, len + 1);
    return copy;
}

ChatSession *chat_session_create(const char *system)
{
    ChatSession *s = calloc_or_end(1, sizeof *s);
    s->system = system ? copy_text(system) : NULL;
    return s;
}

static void free_turn(Turn *turn)
{
    free(turn->question);
    strbuf_deinit(&turn->answer);
}

static void forget_turns(ChatSession *s)
{
    for (size_t i = 0; i < s->num_turns; i++) free_turn(&s->turns[i]);
    s->num_turns = s->num_dropped = 0;
    s->is_waiting = false;
}

void chat_session_destroy(ChatSession *s)
{
    if (!s) return;
    forget_turns(s);
    free(s->turns);
    free(s->system);
    arena_deinit(&s->arena);
    free(s);
}

/* ---- turns ---- */

static Turn *last_turn(const ChatSession *s)
{
    return s->num_turns ? &s->turns[s->num_turns - 1] : NULL;
}

static void ask(ChatSession *s, const char *question)
{
    s->turns = array_room(s->turns, s->num_turns + 1, &s->capacity, sizeof *s->turns);
    s->turns[s->num_turns++] = (Turn){.question = copy_text(question), .request = s->num_asked++};
    s->is_waiting = true;
}

void chat_session_answer(ChatSession *s, Str answer)
{
    Turn *turn = last_turn(s);
    strbuf_clear(&turn->answer);
    strbuf_append(&turn->answer, answer.data, answer.len);
    turn->has_answer = true;
    s->is_waiting = false;
    for (size_t i = 0; i < s->num_dropped; i++) free_turn(&s->turns[i]);
    s->num_turns -= s->num_dropped;
    memmove(s->turns, s->turns + s->num_dropped, s->num_turns * sizeof *s->turns);
    s->num_dropped = 0;
}

void chat_session_withdraw(ChatSession *s)
{
    if (!s->is_waiting) return;
    if (!last_turn(s)->has_answer) free_turn(&s->turns[--s->num_turns]);
    s->is_waiting = false;
    s->num_dropped = 0;
}

bool chat_session_drop_oldest(ChatSession *s)
{
    if (!s->is_waiting || s->num_turns - s->num_dropped < 2) return false;
    s->num_dropped++;
    return true;
}

uint64_t chat_session_request(const ChatSession *s)
{
    return s->num_turns ? last_turn(s)->request : 0;
}

uint32_t chat_session_number(const ChatSession *s)
{
    return s->num_turns ? last_turn(s)->number : 0;
}

static void add_message(ChatSession *s, JsonValue *list, const char *role, Str content)
{
    list->items[list->count++] = chat_message(arena_array(&s->arena, JsonMember, 2), role, content);
}

const JsonValue *chat_session_messages(ChatSession *s)
{
    arena_reset(&s->arena);
    JsonValue *list = arena_new(&s->arena, JsonValue);
    *list = (JsonValue){.type = JSON_ARRAY, .items = arena_array(&s->arena, JsonValue, 2 * s->num_turns + 1)};
    if (s->system) add_message(s, list, "system", str_of(s->system));
    for (size_t i = s->num_dropped; i < s->num_turns; i++) {
        Turn *turn = &s->turns[i];
        add_message(s, list, "user", str_of(turn->question));
        if (s->is_waiting && i + 1 == s->num_turns) break;
        add_message(s, list, "assistant", strbuf_str(&turn->answer));
    }
    return list;
}

/* ---- commands ---- */

typedef struct Command {
    const char *name, *argument, *help;
    Status (*run)(ChatSession *s, const char *argument, ChatAct *act, StrBuf *say);
} Command;

static Status run_help(ChatSession *s, const char *argument, ChatAct *act, StrBuf *say)
{
    (void)s, (void)argument, (void)act;
    chat_session_help(say);
    return OK;
}

static Status run_system(ChatSession *s, const char *argument, ChatAct *act, StrBuf *say)
{
    (void)act;
    free(s->system);
    s->system = *argument ? copy_text(argument) : NULL;
    strbuf_puts(say, *argument ? "the system message is replaced; the turns stay" : "there is no system message now; the turns stay");
    return OK;
}

static Status run_save(ChatSession *s, const char *argument, ChatAct *act, StrBuf *say)
{
    StrBuf           text = {0};
    const JsonValue *messages = chat_session_messages(s);
    (void)act;
    FAIL_IF(!*argument, ERR_INVALID, "/save needs a file: /save FILE");
    json_write(&text, messages, 2);
    strbuf_putc(&text, '\n');
    Status status = file_write_atomic(argument, text.data, text.len);
    if (status == OK) strbuf_printf(say, "%u messages are in %s", messages->count, argument);
    strbuf_deinit(&text);
    return status;
}

static Status run_regenerate(ChatSession *s, const char *argument, ChatAct *act, StrBuf *say)
{
    (void)argument, (void)say;
    FAIL_IF(!s->num_turns, ERR_INVALID, "/regenerate: there is no answer yet; ask something first");
    last_turn(s)->number++;
    s->is_waiting = true;
    *act = CHAT_ASK;
    return OK;
}

static Status run_clear(ChatSession *s, const char *argument, ChatAct *act, StrBuf *say)
{
    (void)argument, (void)act;
    forget_turns(s);
    strbuf_puts(say, "all turns are forgotten; the system message stays");
    return OK;
}

static Status run_quit(ChatSession *s, const char *argument, ChatAct *act, StrBuf *say)
{
    (void)s, (void)argument, (void)say;
    *act = CHAT_QUIT;
    return OK;
}

static const Command commands[] = {
    {"/help", "", "says this", run_help},
    {"/system", " TEXT", "replaces the system message and keeps the turns; without TEXT there is none", run_system},
    {"/save", " FILE", "writes the messages as JSON, for `generate --messages` too", run_save},
    {"/regenerate", "", "makes another answer in place of the last one", run_regenerate},
    {"/clear", "", "forgets all turns", run_clear},
    {"/quit", "", "ends, as Ctrl+D does; Ctrl+C ends an answer", run_quit},
};
enum { NUM_COMMANDS = sizeof commands / sizeof commands[0] };

void chat_session_help(StrBuf *out)
{
    for (int i = 0; i < NUM_COMMANDS; i++) {
        int width = 13 - (int)strlen(commands[i].name);
        strbuf_printf(out, "%s%-*s %s\n", commands[i].name, width, commands[i].argument, commands[i].help);
    }
    strbuf_puts(out, "a line is a question; one that begins with / is written with two: //");
}

static Status run_command(ChatSession *s, const char *line, ChatAct *act, StrBuf *say)
{
    const char *names[NUM_COMMANDS], *argument;
    size_t      len = strcspn(line, " \t");
    char        name[32];
    for (int i = 0; i < NUM_COMMANDS; i++) {
        names[i] = commands[i].name;
        if (strlen(names[i]) != len || memcmp(names[i], line, len) != 0) continue;
        argument = line + len + strspn(line + len, " \t");
        FAIL_IF(*argument && !*commands[i].argument, ERR_INVALID, "%s takes nothing after it", names[i]);
        return commands[i].run(s, argument, act, say);
    }
    snprintf(name, sizeof name, "%.*s", (int)len, line);
    FAIL(ERR_INVALID, "there is no command %s%s; /help lists them, and // begins a question with /", name,
         did_you_mean(", ", name, names, NUM_COMMANDS));
}

Status chat_session_take(ChatSession *s, const char *line, ChatAct *out_act, StrBuf *say)
{
    *out_act = CHAT_NOTHING;
    if (!line[strspn(line, " \t\r")]) return OK;
    if (line[0] == '/' && line[1] != '/') return run_command(s, line, out_act, say);
    ask(s, line[0] == '/' ? line + 1 : line);
    *out_act = CHAT_ASK;
    return OK;
}
