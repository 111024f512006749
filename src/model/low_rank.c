/* Singular vectors are the eigenvectors of w^T w. A small basis that nearly contains the largest of them is built: a random block, and
 * products of w^T w with it (block Krylov; Musco and Musco 2015). Within it the eigenproblem is small, and Jacobi rotations solve it. The
 * best vectors start the next basis, until their residual is at most TOLERANCE. All is in double; each sum has a fixed order. */
#include "model/low_rank.h"

#include "base/scoped.h"
#include "base/philox.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MORE = 8, DEPTH = 6, MOST_ROUNDS = 12, EXACT_DIM = 160, STRIP = 64 };
#define TOLERANCE 1e-8

static double *doubles(Arena *arena, int64_t count)
{
    return arena_array(arena, double, count);
}

/* ---- products with the matrix ---- */

typedef struct Product {
    const float  *w;
    const double *x;
    double       *y;
    int64_t       m, n, cols;
} Product;

/* Row `row` of y (m, cols) = w x, where x is (n, cols). */
static void times_row(void *context, int64_t row, int worker)
{
    (void)worker;
    const Product *p = context;
    double        *y = p->y + row * p->cols;
    memset(y, 0, (size_t)p->cols * sizeof *y);
    for (int64_t i = 0; i < p->n; i++) {
        double        w = (double)p->w[row * p->n + i];
        const double *x = p->x + i * p->cols;
        for (int64_t c = 0; c < p->cols; c++) y[c] += w * x[c];
    }
}

/* Up to STRIP rows, from row STRIP * strip on, of y (n, cols) = w^T x, where x is (m, cols). */
static void turned_strip(void *context, int64_t strip, int worker)
{
    (void)worker;
    const Product *p = context;
    int64_t        begin = strip * STRIP, end = begin + STRIP < p->n ? begin + STRIP : p->n;
    memset(p->y + begin * p->cols, 0, (size_t)((end - begin) * p->cols) * sizeof *p->y);
    for (int64_t row = 0; row < p->m; row++) {
        const double *x = p->x + row * p->cols;
        for (int64_t i = begin; i < end; i++) {
            double  w = (double)p->w[row * p->n + i];
            double *y = p->y + i * p->cols;
            for (int64_t c = 0; c < p->cols; c++) y[c] += w * x[c];
        }
    }
}

typedef struct Matrix {
    ThreadPool  *pool;
    const float *w;
    int64_t      m, n;
    double      *between; /* (m, cols): scratch for w x, from which w^T w x is computed */
} Matrix;

static void times(const Matrix *a, const double *x, int64_t cols, double *y)
{
    Product p = {a->w, x, y, a->m, a->n, cols};
    pool_run(a->pool, a->m, times_row, &p);
}

static void gram_times(const Matrix *a, const double *x, int64_t cols, double *y)
{
    times(a, x, cols, a->between);
    Product p = {a->w, a->between, y, a->m, a->n, cols};
    pool_run(a->pool, (a->n + STRIP - 1) / STRIP, turned_strip, &p);
}

/* ---- small dense steps, of a basis whose vectors are rows ---- */

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += a[i] * b[i];
    return sum;
}

/* Makes row k of the basis orthogonal to the rows before it, and of length 1. False: it is a combination of those rows. */
static bool orthogonalise(double *basis, int64_t k, int64_t n)
{
    double *v = basis + k * n, before = sqrt(dot(v, v, n));
    for (int pass = 0; pass < 2; pass++)
        for (int64_t i = 0; i < k; i++) {
            double part = dot(basis + i * n, v, n);
            for (int64_t c = 0; c < n; c++) v[c] -= part * basis[i * n + c];
        }
    double length = sqrt(dot(v, v, n));
    if (!(length > 1e-12 * before) || !(length > 0)) return false;
    for (int64_t c = 0; c < n; c++) v[c] /= length;
    return true;
}

static void rotate(double *h, double *vectors, int64_t d, int64_t p, int64_t q)
{
    double apq = h[p * d + q];
    if (fabs(apq) <= 1e-300) return;
    double theta = (h[q * d + q] - h[p * d + p]) / (2 * apq);
    double t = (theta < 0 ? -1.0 : 1.0) / (fabs(theta) + sqrt(theta * theta + 1)), c = 1 / sqrt(t * t + 1), s = t * c;
    for (int64_t k = 0; k < d; k++) {
        double kp = h[k * d + p], kq = h[k * d + q];
        h[k * d + p] = c * kp - s * kq;
        h[k * d + q] = s * kp + c * kq;
    }
    for (int64_t k = 0; k < d; k++) {
        double pk = h[p * d + k], qk = h[q * d + k];
        h[p * d + k] = c * pk - s * qk;
        h[q * d + k] = s * pk + c * qk;
        pk = vectors[p * d + k];
        qk = vectors[q * d + k];
        vectors[p * d + k] = c * pk - s * qk;
        vectors[q * d + k] = s * pk + c * qk;
    }
}

/* Makes the symmetric matrix h (d, d) diagonal. The rows of `vectors` become its eigenvectors. */
static void jacobi(double *h, double *vectors, int64_t d)
{
    memset(vectors, 0, (size_t)(d * d) * sizeof *vectors);
    for (int64_t i = 0; i < d; i++) vectors[i * d + i] = 1;
    for (int sweep = 0; sweep < 60; sweep++) {
        double off = 0, on = 0;
        for (int64_t p = 0; p < d; p++)
            for (int64_t q = 0; q < d; q++) *(p == q ? &on : &off) += h[p * d + q] * h[p * d + q];
        if (off <= 1e-30 * on) return;
        for (int64_t p = 0; p < d; p++)
            for (int64_t q = p + 1; q < d; q++) rotate(h, vectors, d, p, q);
    }
}

/* ---- the largest eigenvectors of w^T w ---- */

typedef struct Basis {
    int64_t n, d, most; /* length of a vector, number of vectors, room for vectors */
    double *rows;       /* (d, n) */
    double *images;     /* w^T w times the first num_images rows */
    int64_t num_images;
    double *turned; /* (n, b): a transposed block, and w^T w times it */
    double *product;
} Basis;

static void turn(const double *from, int64_t rows, int64_t cols, double *to)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++) to[c * rows + r] = from[r * cols + c];
}

/* Computes the images of the next `count` rows. */
static void make_images(const Matrix *a, Basis *basis, int64_t count)
{
    int64_t at = basis->num_images * basis->n;
    turn(basis->rows + at, count, basis->n, basis->turned);
    gram_times(a, basis->turned, count, basis->product);
    turn(basis->product, basis->n, count, basis->images + at);
    basis->num_images += count;
}

static void draw(double *out, int64_t count, int64_t offset)
{
    for (int64_t i = 0; i < count; i++) out[i] = (double)philox4x32((uint32_t)(i + offset), 0, 0, 0, 7).v[0] * 0x1p-31 - 1;
}

/* Fills the basis: the images of each block, made orthogonal, are the next block. */
static void grow(const Matrix *a, Basis *basis)
{
    int64_t first = 0, count = basis->d;
    while (basis->d < basis->most && count) {
        int64_t kept = basis->d;
        if (basis->num_images < kept) make_images(a, basis, kept - basis->num_images);
        for (int64_t i = first; i < first + count && basis->d < basis->most; i++) {
            memcpy(basis->rows + basis->d * basis->n, basis->images + i * basis->n, (size_t)basis->n * sizeof *basis->rows);
            if (orthogonalise(basis->rows, basis->d, basis->n)) basis->d++;
        }
        first = kept;
        count = basis->d - kept;
    }
}

/* Reduces the basis to its `keep` best vectors, the largest first. values: their eigenvalues. Returns the largest residual of the first r
 * vectors, divided by the largest eigenvalue. */
static double choose(const Matrix *a, Basis *basis, int64_t keep, int64_t r, double *values)
{
    SCOPED_ARENA(arena);
    int64_t d = basis->d, n = basis->n;
    double *h = doubles(&arena, d * d), *vectors = doubles(&arena, d * d), *best = doubles(&arena, keep * n),
           *images = doubles(&arena, keep * n), worst = 0;
    while (basis->num_images < d) make_images(a, basis, d - basis->num_images < keep ? d - basis->num_images : keep);
    for (int64_t i = 0; i < d; i++)
        for (int64_t k = 0; k <= i; k++) h[i * d + k] = h[k * d + i] = dot(basis->rows + i * n, basis->images + k * n, n);
    jacobi(h, vectors, d);
    for (int64_t i = 0; i < keep; i++) {
        int64_t at = 0;
        for (int64_t k = 1; k < d; k++)
            if (h[k * d + k] > h[at * d + at]) at = k;
        values[i] = h[at * d + at];
        h[at * d + at] = -INFINITY;
        double off = 0; /* squared length of the residual */
        for (int64_t k = 0; k < d; k++)
            for (int64_t c = 0; c < n; c++) {
                best[i * n + c] += vectors[at * d + k] * basis->rows[k * n + c];
                images[i * n + c] += vectors[at * d + k] * basis->images[k * n + c];
            }
        for (int64_t c = 0; c < n; c++) off += pow(images[i * n + c] - values[i] * best[i * n + c], 2);
        if (i < r) worst = fmax(worst, sqrt(off));
    }
    memcpy(basis->rows, best, (size_t)(keep * n) * sizeof *best);
    memcpy(basis->images, images, (size_t)(keep * n) * sizeof *images);
    basis->d = basis->num_images = keep;
    return values[0] > 0 ? worst / values[0] : 0;
}

/* v (r, n): the eigenvectors of the largest eigenvalues, as rows. Returns their residual, as choose does. */
static double largest_vectors(const Matrix *a, int64_t r, double *v)
{
    SCOPED_ARENA(arena);
    int64_t n = a->n, block = r + MORE < n ? r + MORE : n, most = n <= EXACT_DIM ? n : block * DEPTH < n ? block * DEPTH : n;
    Basis   basis = {.n = n,
                     .most = most,
                     .rows = doubles(&arena, most * n),
                     .images = doubles(&arena, most * n),
                     .turned = doubles(&arena, n * block),
                     .product = doubles(&arena, n * block)};
    double *values = doubles(&arena, block), residual = 1;
    for (int64_t tries = 0; basis.d < block && tries < 4 * block; tries++) {
        draw(basis.rows + basis.d * n, n, tries * n);
        if (orthogonalise(basis.rows, basis.d, n)) basis.d++;
    }
    for (int round = 0; round < MOST_ROUNDS && residual > TOLERANCE; round++) {
        grow(a, &basis);
        for (int64_t i = 0; most == n && basis.d < n && i < 4 * n; i++) { /* random vectors fill what products with w^T w don't reach */
            draw(basis.rows + basis.d * n, n, (4 * block + i) * n);
            if (orthogonalise(basis.rows, basis.d, n)) basis.d++;
        }
        residual = choose(a, &basis, block, r, values);
    }
    for (int64_t i = 0; i < r; i++) { /* an eigenvector may have either sign: its largest element becomes positive */
        const double *row = basis.rows + i * n;
        int64_t       at = 0;
        for (int64_t c = 1; c < n; c++)
            if (fabs(row[c]) > fabs(row[at])) at = c;
        for (int64_t c = 0; c < n; c++) v[i * n + c] = row[at] < 0 ? -row[c] : row[c];
    }
    return residual;
}

void low_rank_svd(ThreadPool *pool, const float *w, int64_t m, int64_t n, int64_t r, float *a, float *b, double *out_residual)
{
    SCOPED_ARENA(arena);
    Matrix  matrix = {pool, w, m, n, doubles(&arena, m * (r + MORE < n ? r + MORE : n))};
    double *v = doubles(&arena, r * n), *turned = doubles(&arena, n * r), *u = doubles(&arena, m * r);
    *out_residual = largest_vectors(&matrix, r, v);
    turn(v, r, n, turned);
    times(&matrix, turned, r, u); /* columns of u, times s */
    for (int64_t k = 0; k < r; k++) {
        double square = 0;
        for (int64_t i = 0; i < m; i++) square += u[i * r + k] * u[i * r + k];
        double root = sqrt(sqrt(square)); /* of s */
        for (int64_t i = 0; i < m; i++) b[i * r + k] = (float)(root > 0 ? u[i * r + k] / root : 0);
        for (int64_t c = 0; c < n; c++) a[k * n + c] = (float)(root * v[k * n + c]);
    }
}

/* ---- QR ---- */

/* Reflects the columns of w by I - beta v v^T, in rows k to m - 1. */
typedef struct Reflection {
    double       *w; /* (m, n) */
    const double *v; /* (m); set from row k on */
    double        beta;
    int64_t       m, n, k;
} Reflection;

static void reflect_strip(void *context, int64_t strip, int worker)
{
    (void)worker;
    const Reflection *f = context;
    int64_t           begin = strip * STRIP, count = f->n - begin < STRIP ? f->n - begin : STRIP;
    double            sums[STRIP] = {0};
    for (int64_t i = f->k; i < f->m; i++)
        for (int64_t c = 0; c < count; c++) sums[c] += f->v[i] * f->w[i * f->n + begin + c];
    for (int64_t i = f->k; i < f->m; i++)
        for (int64_t c = 0; c < count; c++) f->w[i * f->n + begin + c] -= f->beta * f->v[i] * sums[c];
}

static void reflect(ThreadPool *pool, const Reflection *f)
{
    pool_run(pool, (f->n + STRIP - 1) / STRIP, reflect_strip, (void *)f);
}

/* Chooses v and beta so that the reflection zeroes column k of f->w below row k. Element k gets the opposite sign of its old value. */
static void choose_reflection(Reflection *f, double *v)
{
    double square = 0;
    for (int64_t i = f->k; i < f->m; i++) {
        v[i] = f->w[i * f->n + f->k];
        square += v[i] * v[i];
    }
    double length = sqrt(square);
    v[f->k] += v[f->k] < 0 ? -length : length;
    double norm = dot(v + f->k, v + f->k, f->m - f->k);
    f->v = v;
    f->beta = norm > 0 ? 2 / norm : 0;
}

void low_rank_qr(ThreadPool *pool, const float *w, int64_t m, int64_t n, int64_t r, float *a, float *b)
{
    SCOPED_ARENA(arena);
    double     *all = doubles(&arena, m * n), *vs = doubles(&arena, r * m), *q = doubles(&arena, m * r);
    Reflection *steps = arena_array(&arena, Reflection, r);
    for (int64_t i = 0; i < m * n; i++) all[i] = (double)w[i];
    for (int64_t k = 0; k < r; k++) {
        steps[k] = (Reflection){.w = all, .m = m, .n = n, .k = k};
        choose_reflection(&steps[k], vs + k * m);
        reflect(pool, &steps[k]);
    }
    for (int64_t k = 0; k < r; k++)
        for (int64_t c = 0; c < n; c++) a[k * n + c] = c < k ? 0 : (float)all[k * n + c];
    for (int64_t k = 0; k < r; k++) q[k * r + k] = 1;
    for (int64_t k = r - 1; k >= 0; k--) { /* the first r columns of Q: the product of all reflections, the last one applied first */
        Reflection of_q = steps[k];
        of_q.w = q;
        of_q.n = r;
        reflect(pool, &of_q);
    }
    for (int64_t i = 0; i < m * r; i++) b[i] = (float)q[i];
}
