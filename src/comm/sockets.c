/* Ranks that are processes, in a star: every rank communicates with rank 0 only. The data channel carries collectives, which rank 0
 * computes in the order of ranks: good enough for control and for the CPU device, but slow. The control channel has its own thread on each
 * side. This thread sends the rank's pulse twice a second, and receives the message that the group has ended. Then it shuts down the data
 * channel, which wakes a thread that waits there. */
#include "comm/meet.h"

#include "base/c_locale.h"
#include "comm/reduce.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define BEAT_SECONDS 0.5
#define DEAD_SECONDS 7.0 /* a peer that is silent on the control channel for this long counts as dead */

enum { PIECE = 1 << 16, MOST_SECRET = 4096 };

typedef struct Peer {
    int    control, data;
    bool   left;  /* the peer said goodbye */
    double heard; /* time of the peer's last message */
    size_t got;
    char   bytes[sizeof(WireControl)];
    Pulse  pulse; /* the rank's pulse, as in its last message */
} Peer;

typedef struct SocketComm {
    Comm      base;
    CommSide  side;
    CommLife  life;
    pthread_t thread;
    Peer     *peers; /* on rank 0: by rank, [0] unused; on other ranks: only [0], which is rank 0 */
    int       first_peer, num_peers, wake;
    bool      leaving, told;
} SocketComm;

static SocketComm *socket_of(Comm *comm)
{
    return (SocketComm *)comm;
}

static void sockets_wake(Comm *comm)
{
    uint64_t one = 1;
    if (write(socket_of(comm)->wake, &one, sizeof one) < 0) return; /* the counter is full, so the thread will wake */
}

static void locked_end(SocketComm *self, int rank, Status cause, const char *why)
{
    comm_locked_end(&self->base, rank, cause, why);
}

/* ---- the control channel ---- */

static void say(Peer *peer, const WireControl *message)
{
    if (peer->control < 0 || peer->left) return;
    ssize_t n = send(peer->control, message, sizeof *message, MSG_NOSIGNAL | MSG_DONTWAIT);
    /* The peer's buffer is full: it hasn't read for minutes, and will be found dead. Half a message was sent and can't be taken back. */
    if (n > 0 && n < (ssize_t)sizeof *message) shutdown(peer->control, SHUT_RDWR);
}

static void say_all(SocketComm *self, const WireControl *message)
{
    for (int p = self->first_peer; p < self->num_peers; p++) say(&self->peers[p], message);
}

static WireControl make_message(const SocketComm *self, WireKind kind)
{
    WireControl message = {.kind = (int32_t)kind, .rank = self->base.rank};
    memcpy(message.magic, WIRE_MAGIC, 8);
    return message;
}

static void locked_beat(SocketComm *self)
{
    WireControl       message = make_message(self, WIRE_BEAT);
    const PulsePhase *phase = &self->side.pulse.phases[self->side.pulse.phase];
    message.waits = self->side.pulse.waits;
    message.silence = pulse_silence(&self->side.pulse, pulse_now());
    message.longest = phase->longest;
    memcpy(message.phase, phase->name, sizeof message.phase);
    say_all(self, &message);
}

static void locked_say_end(SocketComm *self)
{
    WireControl message = make_message(self, WIRE_END);
    message.rank = self->life.end.rank;
    message.cause = (int32_t)self->life.end.cause;
    snprintf(message.why, sizeof message.why, "%s", self->life.end.why);
    say_all(self, &message);
}

/* The rank of the process at the other end. */
static int rank_of(const SocketComm *self, int peer)
{
    return self->base.rank == 0 ? peer : 0;
}

static void locked_hear(SocketComm *self, int p, const WireControl *message)
{
    Peer *peer = &self->peers[p];
    peer->heard = pulse_now();
    if (message->kind == WIRE_BYE) peer->left = true;
    if (message->kind == WIRE_END) locked_end(self, message->rank, (Status)message->cause, message->why);
    if (message->kind == WIRE_BEAT) pulse_told(&peer->pulse, message->phase, message->longest, message->silence, message->waits);
}

static void locked_read(SocketComm *self, int p)
{
    Peer       *peer = &self->peers[p];
    WireControl message;
    for (;;) {
        ssize_t n = recv(peer->control, peer->bytes + peer->got, sizeof peer->bytes - peer->got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n <= 0) {
            if (!peer->left) locked_end(self, rank_of(self, p), ERR_RANK, "its process has ended, or the link to it is broken");
            close(peer->control);
            peer->control = -1;
            return;
        }
        peer->got += (size_t)n;
        if (peer->got < sizeof peer->bytes) continue;
        peer->got = 0;
        if (wire_control_read(peer->bytes, &message))
            locked_hear(self, p, &message);
        else
            locked_end(self, rank_of(self, p), ERR_RANK, "it says what this program doesn't say");
    }
}

static void locked_judge(SocketComm *self)
{
    char   why[256];
    double now = pulse_now();
    for (int p = self->first_peer; p < self->num_peers; p++) {
        Peer *peer = &self->peers[p];
        if (peer->left || peer->control < 0) continue;
        snprintf(why, sizeof why, "nothing was heard of it for %.0f s: it has stopped, or the link to it is broken", now - peer->heard);
        if (now - peer->heard > DEAD_SECONDS) locked_end(self, rank_of(self, p), ERR_RANK, why);
        if (self->base.rank == 0 && pulse_judge(&peer->pulse, p, &self->life.limits, now, why, sizeof why))
            locked_end(self, p, ERR_RANK, why);
    }
    if (self->base.rank == 0 && pulse_judge(&self->side.pulse, 0, &self->life.limits, now, why, sizeof why))
        locked_end(self, 0, ERR_RANK, why);
}

/* After the group has ended: tells the other ranks once, and calls on_end. */
static void locked_tell_end(SocketComm *self)
{
    if (!self->told) {
        locked_say_end(self);
        for (int p = self->first_peer; p < self->num_peers; p++) shutdown(self->peers[p].data, SHUT_RDWR);
    }
    self->told = true;
    (void)comm_locked_tell(&self->base);
}

/* Seconds between two rounds of the control thread, each with a beat. */
static double step_of(const SocketComm *self)
{
    return self->life.limits.progress / 10 < BEAT_SECONDS ? self->life.limits.progress / 10 : BEAT_SECONDS;
}

static void wait_for_word(SocketComm *self, struct pollfd *polls)
{
    uint64_t count;
    int      used = 0;
    polls[used++] = (struct pollfd){.fd = self->wake, .events = POLLIN};
    for (int p = self->first_peer; p < self->num_peers; p++)
        polls[used++] = (struct pollfd){.fd = self->peers[p].control, .events = POLLIN};
    poll(polls, (nfds_t)used, (int)(step_of(self) * 1000) + 1); /* poll ignores negative descriptors (closed channels) */
    if (polls[0].revents && read(self->wake, &count, sizeof count) < 0) return;
}

static void *control_main(void *argument)
{
    SocketComm    *self = argument;
    double         said = 0;
    struct pollfd *polls = calloc_or_end((size_t)self->num_peers + 1, sizeof *polls);
    pthread_mutex_lock(&self->life.lock);
    while (!self->leaving) {
        if (pulse_now() - said >= step_of(self)) {
            locked_beat(self);
            said = pulse_now();
        }
        if (!self->life.end.ended) locked_judge(self);
        if (self->life.end.ended) locked_tell_end(self);
        pthread_mutex_unlock(&self->life.lock);
        wait_for_word(self, polls);
        pthread_mutex_lock(&self->life.lock);
        for (int p = self->first_peer; p < self->num_peers; p++)
            if (self->peers[p].control >= 0) locked_read(self, p);
    }
    if (self->life.end.ended && !self->told) locked_say_end(self);
    WireControl bye = make_message(self, WIRE_BYE);
    say_all(self, &bye);
    pthread_mutex_unlock(&self->life.lock);
    free(polls);
    return NULL;
}

/* ---- the data channel ---- */

static Status end_all(SocketComm *self, int rank, Status cause, const char *why)
{
    pthread_mutex_lock(&self->life.lock);
    locked_end(self, rank, cause, why);
    pthread_mutex_unlock(&self->life.lock);
    return comm_check(&self->base);
}

/* The data channel to a peer broke. Waits for the control channel to say why; if it doesn't, ends the group itself. */
static Status broken(SocketComm *self, int p)
{
    double until = pulse_now() + DEAD_SECONDS;
    pthread_mutex_lock(&self->life.lock);
    while (!self->life.end.ended && pulse_now() < until && !self->peers[p].left) {
        pthread_mutex_unlock(&self->life.lock);
        usleep(20000);
        pthread_mutex_lock(&self->life.lock);
    }
    bool left = self->peers[p].left;
    pthread_mutex_unlock(&self->life.lock);
    return end_all(self, rank_of(self, p), ERR_RANK, left ? "it has left, and others wait for it" : "the link to it is broken");
}

static Status send_to(SocketComm *self, int p, const void *data, size_t size)
{
    for (size_t at = 0; at < size;) {
        ssize_t n = send(self->peers[p].data, (const char *)data + at, size - at, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return broken(self, p);
        at += (size_t)n;
    }
    return OK;
}

static Status receive_from(SocketComm *self, int p, void *data, size_t size)
{
    for (size_t at = 0; at < size;) {
        ssize_t n = recv(self->peers[p].data, (char *)data + at, size - at, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return broken(self, p);
        at += (size_t)n;
    }
    return OK;
}

static Status answer(SocketComm *self, int p, const void *data, size_t size)
{
    char done = 1;
    TRY(send_to(self, p, &done, 1));
    return send_to(self, p, data, size);
}

/* Receives the calls of all other ranks, which must match rank 0's. */
static Status hear_calls(SocketComm *self, const CommCall *call)
{
    char why[256];
    for (int p = 1; p < self->num_peers; p++) {
        WireCall bytes;
        CommCall theirs;
        TRY(receive_from(self, p, &bytes, sizeof bytes));
        if (!wire_call_read(&bytes, &theirs)) return broken(self, p);
        if (!comm_calls_match(call, &theirs, why, sizeof why)) return end_all(self, p, ERR_INTERNAL, why);
    }
    return OK;
}

static Status host_gather(SocketComm *self, const CommCall *call)
{
    size_t each = (size_t)call->count;
    if (each && call->send != call->recv) memmove(call->recv, call->send, each);
    for (int p = 1; p < self->num_peers; p++) TRY(receive_from(self, p, (char *)call->recv + (size_t)p * each, each));
    for (int p = 1; p < self->num_peers; p++) TRY(answer(self, p, call->recv, (size_t)self->num_peers * each));
    return OK;
}

static Status host_broadcast(SocketComm *self, const CommCall *call)
{
    size_t bytes = (size_t)call->count;
    if (call->root) TRY(receive_from(self, call->root, call->recv, bytes));
    for (int p = 1; p < self->num_peers; p++) TRY(answer(self, p, call->recv, p == call->root ? 0 : bytes));
    return OK;
}

static Status add_rank(SocketComm *self, int p, const CommCall *call, char *sums, int64_t total)
{
    char piece[PIECE];
    for (int64_t at = 0, n; at < total; at += n) {
        n = total - at < PIECE / REDUCE_BYTES ? total - at : PIECE / REDUCE_BYTES;
        TRY(receive_from(self, p, piece, (size_t)dtype_bytes(call->dtype, n)));
        reduce_next(sums + at * reduce_bytes(call->dtype), piece, n, call->dtype, call->reduce);
    }
    return OK;
}

static Status host_sums(SocketComm *self, const CommCall *call, char *sums)
{
    bool    scatters = call->kind == COMM_REDUCE_SCATTER;
    int64_t total = call->count * (scatters ? self->num_peers : 1);
    size_t  bytes = (size_t)dtype_bytes(call->dtype, call->count);
    reduce_first(sums, call->send, total, call->dtype);
    for (int p = 1; p < self->num_peers; p++) TRY(add_rank(self, p, call, sums, total));
    for (int p = self->num_peers - 1; p > 0; p--) {
        /* reduce-scatter: recv holds each rank's part while it is sent; rank 0's own part is stored last */
        if (scatters || p == self->num_peers - 1)
            reduce_store(call->recv, sums + (scatters ? p * call->count * reduce_bytes(call->dtype) : 0), call->count, call->dtype);
        TRY(answer(self, p, call->recv, bytes));
    }
    if (scatters) reduce_store(call->recv, sums, call->count, call->dtype);
    return OK;
}

static Status host_reduce(SocketComm *self, const CommCall *call)
{
    size_t total = (size_t)call->count * (size_t)(call->kind == COMM_REDUCE_SCATTER ? self->num_peers : 1);
    char  *sums = malloc_or_end(total * REDUCE_BYTES + 1);
    Status status = host_sums(self, call, sums);
    free(sums);
    return status;
}

static Status host_call(SocketComm *self, const CommCall *call)
{
    TRY(hear_calls(self, call));
    if (call->kind == COMM_ALL_GATHER) return host_gather(self, call);
    if (call->kind == COMM_BROADCAST) return host_broadcast(self, call);
    if (call->kind != COMM_BARRIER) return host_reduce(self, call);
    for (int p = 1; p < self->num_peers; p++) TRY(answer(self, p, NULL, 0));
    return OK;
}

static Status guest_call(SocketComm *self, const CommCall *call)
{
    WireCall bytes;
    char     done;
    bool     sends = call->kind != COMM_BARRIER && (call->kind != COMM_BROADCAST || call->root == self->base.rank);
    bool     receives = call->kind != COMM_BARRIER && (call->kind != COMM_BROADCAST || call->root != self->base.rank);
    wire_call_write(call, &bytes);
    TRY(send_to(self, 0, &bytes, sizeof bytes));
    if (sends) TRY(send_to(self, 0, call->send, comm_send_bytes(call, self->base.size)));
    TRY(receive_from(self, 0, &done, 1));
    return receives ? receive_from(self, 0, call->recv, comm_recv_bytes(call, self->base.size)) : OK;
}

static Status sockets_call(Comm *comm, const CommCall *call)
{
    SocketComm *self = socket_of(comm);
    pthread_mutex_lock(&self->life.lock);
    Status status = comm_end_status(&self->life.end);
    pulse_enter(&self->side.pulse);
    pthread_mutex_unlock(&self->life.lock);
    if (status == OK) status = comm->rank == 0 ? host_call(self, call) : guest_call(self, call);
    pthread_mutex_lock(&self->life.lock);
    pulse_leave(&self->side.pulse);
    pthread_mutex_unlock(&self->life.lock);
    return status;
}

/* ---- leaving the group ---- */

/* Reads the rest of what the other end sends before closing. Closing with unread data would reset the connection, and the other end
 * could lose this end's last message. */
static void close_gently(Peer *peer)
{
    double until = pulse_now() + 1;
    char   bytes[sizeof(WireControl)];
    if (peer->data >= 0) close(peer->data);
    if (peer->control < 0) return;
    shutdown(peer->control, SHUT_WR);
    while (pulse_now() < until) {
        struct pollfd poll_fd = {.fd = peer->control, .events = POLLIN};
        if (poll(&poll_fd, 1, 100) > 0 && recv(peer->control, bytes, sizeof bytes, MSG_DONTWAIT) <= 0) break;
    }
    close(peer->control);
}

static void free_comm(SocketComm *self)
{
    for (int p = self->first_peer; p < self->num_peers; p++) close_gently(&self->peers[p]);
    if (self->wake >= 0) close(self->wake);
    comm_life_deinit(&self->life);
    free(self->peers);
    free(self);
}

static void sockets_destroy(Comm *comm)
{
    SocketComm *self = socket_of(comm);
    pthread_mutex_lock(&self->life.lock);
    self->leaving = true;
    pthread_mutex_unlock(&self->life.lock);
    sockets_wake(comm);
    pthread_join(self->thread, NULL);
    free_comm(self);
}

static const CommApi sockets_api = {
    .name = "sockets",
    .call = sockets_call,
    .wake = sockets_wake,
    .destroy = sockets_destroy,
};

/* ---- making a Comm ---- */

static void take_sockets(SocketComm *self, MeetSockets *sockets)
{
    for (int p = self->first_peer; p < self->num_peers; p++) {
        Peer *peer = &self->peers[p];
        peer->control = sockets->fd[p][CHANNEL_CONTROL];
        peer->data = sockets->fd[p][CHANNEL_DATA];
        peer->heard = pulse_now();
        pulse_init(&peer->pulse);
        fcntl(peer->control, F_SETFL, fcntl(peer->control, F_GETFL) & ~O_NONBLOCK);
    }
    free(sockets->fd);
}

Status comm_meet(const CommMeeting *meeting, const CommLimits *limits, Comm **out)
{
    MeetSockets sockets = {0};
    TRY(meet_all(meeting, &sockets));
    SocketComm *self = calloc_or_end(1, sizeof *self);
    int         num_peers = meeting->rank == 0 ? meeting->world_size : 1;
    self->base = (Comm){.api = &sockets_api,
                        .side = &self->side,
                        .rank = meeting->rank,
                        .size = meeting->world_size,
                        .is_local = !meeting->host || strncmp(meeting->host, "127.", 4) == 0};
    self->side.life = &self->life;
    comm_life_init(&self->life, limits);
    self->first_peer = meeting->rank == 0;
    self->num_peers = num_peers;
    self->peers = calloc_or_end((size_t)num_peers, sizeof *self->peers);
    self->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pulse_init(&self->side.pulse);
    take_sockets(self, &sockets);
    int error = self->wake < 0 ? errno : c_locale_thread(&self->thread, control_main, self);
    if (error) {
        free_comm(self);
        FAIL(ERR_IO, "cannot start the thread that hears other ranks: %s", strerror(error));
    }
    *out = &self->base;
    return OK;
}

typedef struct Visitor {
    CommMeeting       meeting;
    const CommLimits *limits;
    Comm             *comm;
    Status            status;
    char              message[1024];
    pthread_t         thread;
} Visitor;

static void *visit(void *argument)
{
    Visitor *visitor = argument;
    visitor->status = comm_meet(&visitor->meeting, visitor->limits, &visitor->comm);
    if (visitor->status != OK) snprintf(visitor->message, sizeof visitor->message, "%s", status_message());
    return NULL;
}

Status comm_meet_several(const CommMeeting *meeting, const CommLimits *limits, int count, Comm *out[])
{
    FAIL_IF(count < 1 || count > COMM_MOST_RANKS, ERR_INVALID, "%d ranks of one process, expected 1 to %d", count, COMM_MOST_RANKS);
    Visitor *visitors = calloc_or_end((size_t)count, sizeof *visitors);
    int      started = 0, failed = -1;
    for (; started < count; started++) {
        visitors[started] = (Visitor){.meeting = *meeting, .limits = limits};
        visitors[started].meeting.rank += started;
        if (c_locale_thread(&visitors[started].thread, visit, &visitors[started]) != 0) break;
    }
    for (int i = 0; i < started; i++) {
        pthread_join(visitors[i].thread, NULL);
        if (visitors[i].status != OK && failed < 0) failed = i;
        out[i] = visitors[i].comm;
    }
    Status status = failed >= 0       ? status_fail(visitors[failed].status, "%s", visitors[failed].message)
                    : started < count ? status_fail(ERR_IO, "cannot start a thread for each of %d ranks", count)
                                      : OK;
    for (int i = 0; i < started && status != OK; i++) comm_destroy(visitors[i].comm);
    free(visitors);
    return status;
}

Status comm_secret_read(const char *path, char **out)
{
    char        text[MOST_SECRET + 1];
    struct stat info;
    ssize_t     len = 0;
    if (path) {
        int fd;
        do fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* doesn't block on a pipe */
        while (fd < 0 && errno == EINTR);
        FAIL_IF(fd < 0, ERR_INVALID, "cannot read the secret of %s: %s", path, strerror(errno));
        bool known = fstat(fd, &info) == 0;
        len = known ? read(fd, text, sizeof text) : -1;
        close(fd);
        FAIL_IF(len < 0 || !S_ISREG(info.st_mode), ERR_INVALID, "cannot read the secret of %s: it isn't a file", path);
        FAIL_IF(info.st_mode & 077, ERR_INVALID, "others may read the secret of %s (mode %03o): chmod 600 %s", path,
                (unsigned)(info.st_mode & 0777), path);
    } else {
        const char *given = getenv(COMM_SECRET_VARIABLE);
        FAIL_IF(!given, ERR_INVALID,
                "ranks of several processes need a secret, the same for all: export %s, or name a file of it (key rendezvous_secret)",
                COMM_SECRET_VARIABLE);
        len = (ssize_t)strnlen(given, sizeof text);
        memcpy(text, given, (size_t)len);
    }
    FAIL_IF(len > MOST_SECRET, ERR_INVALID, "the secret is longer than %d characters", MOST_SECRET);
    while (len && (text[len - 1] == '\n' || text[len - 1] == '\r')) len--;
    FAIL_IF(memchr(text, 0, (size_t)len), ERR_INVALID, "the secret holds a NUL character");
    *out = strndup(text, (size_t)len);
    explicit_bzero(text, sizeof text);
    if (!*out) fatal_out_of_memory(MOST_SECRET);
    return OK;
}
