/* Charts as SVG and as text, with axes that have round ticks. */
#include "agent/launch/plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/need.h"

#define PLOT_MAX_TICKS 24u

#define PLOT_LARGEST 1e200

/* True for a number that can be drawn: finite, and small enough to compute differences. */
static bool plot_drawable(double value)
{
    return isfinite(value) && fabs(value) < PLOT_LARGEST;
}

/* 1, 2 or 5 times a power of ten, so that about n steps make up the range. */
static double round_step(double range, uint32_t n)
{
    double raw = range / (n > 2 ? n : 2), power = pow(10, floor(log10(raw))), part = raw / power;
    return power * (part <= 1.0001 ? 1 : part <= 2.0001 ? 2 : part <= 5.0001 ? 5 : 10);
}

/* whole: the ends move out to ticks. */
static void axis_set(struct plot_axis *self, double low, double high, uint32_t n, bool whole)
{
    double size = fmax(fabs(low), fabs(high));
    if (!(high - low > size * 1e-9)) {
        /* A single value is put in the middle. */
        double margin = size > 0 ? size * 0.1 : 1;
        low -= margin;
        high += margin;
    }
    self->step = round_step(high - low, n);
    self->low = whole ? floor(low / self->step + 1e-6) * self->step : low;
    self->high = whole ? ceil(high / self->step - 1e-6) * self->step : high;
    self->first = ceil(self->low / self->step - 1e-6) * self->step;
    double ticks = floor((self->high - self->first) / self->step + 1e-6) + 1;
    self->ticks = ticks < 0 ? 0 : ticks > PLOT_MAX_TICKS ? PLOT_MAX_TICKS : (uint32_t)ticks;
}

bool plot_axes(const struct plot *plot, uint32_t x_ticks, uint32_t y_ticks, struct plot_axis *x, struct plot_axis *y)
{
    double left = INFINITY, right = -INFINITY, low = INFINITY, high = -INFINITY;
    for (uint32_t i = 0; i < plot->n_lines && i < PLOT_MAX_LINES; i++) {
        const struct plot_line *line = &plot->lines[i];
        for (uint32_t k = 0; k < line->n; k++) {
            if (!plot_drawable(line->x[k]) || !plot_drawable(line->y[k]))
                continue;
            left = fmin(left, line->x[k]);
            right = fmax(right, line->x[k]);
            low = fmin(low, line->y[k]);
            high = fmax(high, line->y[k]);
        }
    }
    if (!(left <= right))
        return false;
    if (plot->from_zero) {
        low = fmin(low, 0);
        high = fmax(high, 0);
    }
    /* An axis that begins near 0 begins at 0. */
    if (left > 0 && left < 0.5 * right)
        left = 0;
    /* A constant 0 lies at the lower end of its axis. */
    if (low == 0 && high == 0)
        high = 1;
    axis_set(x, left, right, x_ticks, false);
    axis_set(y, low, high, y_ticks, true);
    return true;
}

static double plot_tick(const struct plot_axis *axis, uint32_t i)
{
    double value = axis->first + i * axis->step;
    return fabs(value) < axis->step * 1e-6 ? 0 : value;
}

/* 0..1 between the ends. */
static double plot_share(const struct plot_axis *axis, double value)
{
    double share = (value - axis->low) / (axis->high - axis->low);
    return share > 1 ? 1 : share > 0 ? share : 0;
}

const char *plot_label(const struct plot_axis *axis, double value, char *out)
{
    static const char *const units[] = {"", " k", " M", " G", " T"};
    double largest = fmax(fabs(axis->low), fabs(axis->high)), scale = 1;
    uint32_t unit = 0;
    while (largest / scale >= 9999.5 && unit < 4) {
        scale *= 1000;
        unit++;
    }
    if (largest / scale >= 1e6 || axis->step < 1e-6) {
        snprintf(out, FORMAT_SIZE, "%.3g", value);
        return out;
    }
    double decimals = ceil(-log10(axis->step / scale) - 1e-6);
    int digits = decimals > 0 ? decimals < 9 ? (int)decimals : 9 : 0;
    snprintf(out, FORMAT_SIZE, "%.*f%s", digits, value / scale, value == 0 ? "" : units[unit]);
    return out;
}

/* Line charts as SVG: one element with its own style, for a file or inside a page. */

/* Colours that differ in hue and lightness, and stand out on white and on black. A dashed line has the colour of the
 * line before it: prediction and outcome belong together. */
static const char style[] =
    "<style>.plot{font-family:system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',sans-serif;font-size:11px}"
    ".plot .ground{fill:#ffffff}.plot .grid{stroke:#e4e7ec;stroke-width:1}.plot .axis{stroke:#8b95a5;stroke-width:1}"
    ".plot text{fill:#5b6675}.plot .title{fill:#1f2733;font-size:14px;font-weight:600}"
    ".plot .line{fill:none;stroke-width:1.75;stroke-linejoin:round;stroke-linecap:round}"
    ".plot .dashed{stroke-dasharray:6 5;stroke-opacity:.75}"
    ".plot .c0{stroke:#2f7de1}.plot .c1{stroke:#e67700}.plot .c2{stroke:#12a071}.plot .c3{stroke:#b154cf}"
    ".plot .c4{stroke:#d9485f}.plot .c5{stroke:#14a0b8}.plot .c6{stroke:#a88600}.plot .c7{stroke:#7a869a}"
    ".plot .f0{fill:#2f7de1}.plot .f1{fill:#e67700}.plot .f2{fill:#12a071}.plot .f3{fill:#b154cf}"
    ".plot .f4{fill:#d9485f}.plot .f5{fill:#14a0b8}.plot .f6{fill:#a88600}.plot .f7{fill:#7a869a}"
    "@media (prefers-color-scheme:dark){.plot .ground{fill:#161b22}.plot .grid{stroke:#2a313c}"
    ".plot .axis{stroke:#6b7685}.plot text{fill:#9aa5b4}.plot .title{fill:#e6ebf2}}</style>";

struct canvas {
    struct text *out;
    const struct plot *plot;
    double width, height, left, right, top, bottom; /* of the drawing and of the inside of its axes */
    struct plot_axis x, y;
};

void plot_escape(struct text *out, const char *text)
{
    for (const char *s = text ? text : ""; *s;) {
        size_t plain = strcspn(s, "&<>\"'\x01\x02\x03\x04\x05\x06\x07\x08\x0b\x0c\x0e\x0f\x10\x11\x12\x13\x14\x15\x16"
                                  "\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f\x7f");
        text_add(out, "%.*s", (int)plain, s);
        s += plain;
        if (*s == '\0')
            break;
        text_add(out, "%s",
                 *s == '&'    ? "&amp;"
                 : *s == '<'  ? "&lt;"
                 : *s == '>'  ? "&gt;"
                 : *s == '"'  ? "&quot;"
                 : *s == '\'' ? "&#39;"
                              : "?"); /* characters that XML forbids */
        s++;
    }
}

static uint32_t colour_of(const struct plot *plot, uint32_t index)
{
    uint32_t colour = 0;
    for (uint32_t i = 1; i <= index; i++)
        colour += !plot->lines[i].dashed;
    return colour % 8;
}

static double at_x(const struct canvas *self, double value)
{
    return self->left + plot_share(&self->x, value) * (self->right - self->left);
}

static double at_y(const struct canvas *self, double value)
{
    return self->bottom - plot_share(&self->y, value) * (self->bottom - self->top);
}

static void add_text(struct canvas *self, double x, double y, const char *attributes, const char *text)
{
    text_add(self->out, "<text x=\"%.1f\" y=\"%.1f\"%s%s>", x, y, attributes[0] ? " " : "", attributes);
    plot_escape(self->out, text);
    text_add(self->out, "</text>");
}

/* ---- frame ---- */

/* An estimate: the real width depends on the reader's font. */
static double text_size(const char *text)
{
    return 6.2 * (double)format_width(text);
}

/* Returns the number of rows that the legend takes. */
static uint32_t legend(struct canvas *self)
{
    const struct plot *plot = self->plot;
    double x = self->left, y = self->top;
    uint32_t rows = 1;
    if (plot->n_lines < 2)
        return 0;
    for (uint32_t i = 0; i < plot->n_lines; i++) {
        const struct plot_line *line = &plot->lines[i];
        const char *name = line->name ? line->name : "";
        double size = 26 + text_size(name) + 16;
        if (x > self->left && x + size > self->width) {
            x = self->left;
            y += 16;
            rows++;
        }
        text_add(self->out, "<path class=\"line c%u%s\" d=\"M%.1f %.1fh20\"/>", colour_of(plot, i),
                 line->dashed ? " dashed" : "", x, y - 4);
        add_text(self, x + 26, y, "", name);
        x += size;
    }
    return rows;
}

static void axes(struct canvas *self)
{
    char label[FORMAT_SIZE];
    for (uint32_t i = 0; i < self->y.ticks; i++) {
        double value = plot_tick(&self->y, i), y = at_y(self, value);
        text_add(self->out, "<path class=\"grid\" d=\"M%.1f %.1fH%.1f\"/>", self->left, y, self->right);
        add_text(self, self->left - 8, y + 4, "text-anchor=\"end\"", plot_label(&self->y, value, label));
    }
    for (uint32_t i = 0; i < self->x.ticks; i++) {
        double value = plot_tick(&self->x, i), x = at_x(self, value);
        text_add(self->out, "<path class=\"axis\" d=\"M%.1f %.1fv4\"/>", x, self->bottom);
        add_text(self, x, self->bottom + 17, "text-anchor=\"middle\"", plot_label(&self->x, value, label));
    }
    text_add(self->out, "<path class=\"axis\" d=\"M%.1f %.1fH%.1f\"/>", self->left, self->bottom, self->right);
}

static void labels(struct canvas *self)
{
    const struct plot *plot = self->plot;
    if (plot->x_label && plot->x_label[0])
        add_text(self, (self->left + self->right) / 2, self->height - 8, "text-anchor=\"middle\"", plot->x_label);
    if (plot->y_label && plot->y_label[0]) {
        double middle = (self->top + self->bottom) / 2;
        text_add(self->out, "<text transform=\"translate(16 %.1f) rotate(-90)\" text-anchor=\"middle\">", middle);
        plot_escape(self->out, plot->y_label);
        text_add(self->out, "</text>");
    }
}

/* ---- lines ---- */

/* A point between two gaps has no line that would show it, so it gets a mark. Returns true if a mark is due. */
static bool is_alone(const struct plot_line *line, uint32_t i)
{
    bool before = i > 0 && plot_drawable(line->x[i - 1]) && plot_drawable(line->y[i - 1]);
    bool after = i + 1 < line->n && plot_drawable(line->x[i + 1]) && plot_drawable(line->y[i + 1]);
    return !before && !after;
}

static void draw_line(struct canvas *self, uint32_t index)
{
    const struct plot_line *line = &self->plot->lines[index];
    uint32_t colour = colour_of(self->plot, index);
    struct text path = {0}, marks = {0};
    bool begun = false, all = line->points && line->n <= 200;
    for (uint32_t i = 0; i < line->n; i++) {
        if (!plot_drawable(line->x[i]) || !plot_drawable(line->y[i])) {
            begun = false;
            continue;
        }
        double x = at_x(self, line->x[i]), y = at_y(self, line->y[i]);
        text_add(&path, "%s%.1f %.1f", begun ? "L" : "M", x, y);
        begun = true;
        if (all || is_alone(line, i))
            text_add(&marks, "<circle class=\"f%u\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.8\"/>", colour, x, y);
    }
    if (path.size) {
        text_add(self->out, "<path class=\"line c%u%s\" d=\"%s\"><title>", colour, line->dashed ? " dashed" : "",
                 text_get(&path));
        plot_escape(self->out, line->name);
        text_add(self->out, "</title></path>");
    }
    text_add(self->out, "%s", text_get(&marks));
    text_fini(&path);
    text_fini(&marks);
}

void plot_svg(struct text *out, const struct plot *plot, uint32_t width, uint32_t height)
{
    struct plot own = *plot;
    own.n_lines = own.n_lines < PLOT_MAX_LINES ? own.n_lines : PLOT_MAX_LINES;
    width = width < 160 ? 160 : width;
    height = height < 120 ? 120 : height;
    struct canvas self = {.out = out, .plot = &own, .width = width, .height = height};
    self.left = own.y_label && own.y_label[0] ? 72 : 56;
    self.right = width - 20.0;
    self.bottom = height - (own.x_label && own.x_label[0] ? 44.0 : 28.0);
    self.top = own.title && own.title[0] ? 46 : 26;
    text_add(out,
             "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" role=\"img\" width=\"%u\" height=\"%u\" "
             "viewBox=\"0 0 %u %u\"><title>",
             width, height, width, height);
    plot_escape(out, own.title);
    text_add(out, "</title>%s<rect class=\"ground\" width=\"%u\" height=\"%u\" rx=\"10\"/>", style, width, height);
    struct plot_axis any;
    bool some = plot_axes(&own, 1, 1, &any, &any);
    uint32_t rows = some ? legend(&self) : 0;
    self.top += rows ? 16.0 * rows - 2 : -8;
    self.top = fmin(self.top, self.bottom - 40);
    if (own.title && own.title[0])
        add_text(&self, 16, 24, "class=\"title\"", own.title);
    if (some) {
        plot_axes(&own, (uint32_t)(self.right - self.left) / 90, (uint32_t)(self.bottom - self.top) / 40, &self.x,
                  &self.y);
        axes(&self);
        labels(&self);
        for (uint32_t i = 0; i < own.n_lines; i++)
            draw_line(&self, i);
    } else {
        add_text(&self, width / 2.0, height / 2.0, "text-anchor=\"middle\"", "no data");
    }
    text_add(out, "</svg>\n");
}

/* Line charts out of characters: dots of braille (two by four to a character) where there is UTF-8, else marks. */

#define MIN_COLUMNS 24u
#define MIN_ROWS 6u
#define MAX_COLUMNS 400u
#define MAX_ROWS 200u

struct raster {
    uint32_t columns, rows;  /* characters inside of the axes */
    uint32_t fine_x, fine_y; /* dots to a character */
    uint8_t *dots;           /* of a character: a bit for each dot, as braille numbers them */
    uint8_t *marks;          /* of a character: 0, or 1 + the line whose point it is */
    struct plot_axis x, y;
};

static const char *const round_marks[PLOT_MAX_LINES] = {"●", "○", "◆", "◇", "■", "□", "▲", "△"};
static const char plain_marks[PLOT_MAX_LINES + 1] = "*o+x#@%&";

static void raster_dot(struct raster *self, int64_t x, int64_t y, uint32_t line, bool mark)
{
    static const uint8_t bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    int64_t wide = (int64_t)self->columns * self->fine_x, tall = (int64_t)self->rows * self->fine_y;
    if (x < 0 || y < 0 || x >= wide || y >= tall)
        return;
    uint32_t cell = (uint32_t)(y / self->fine_y) * self->columns + (uint32_t)(x / self->fine_x);
    self->dots[cell] |= bits[y % self->fine_y][x % self->fine_x];
    if (mark)
        self->marks[cell] = (uint8_t)(line + 1);
}

static int64_t raster_x(const struct raster *self, double value)
{
    return (int64_t)(plot_share(&self->x, value) * (self->columns * self->fine_x - 1) + 0.5);
}

static int64_t raster_y(const struct raster *self, double value)
{
    return (int64_t)((1 - plot_share(&self->y, value)) * (self->rows * self->fine_y - 1) + 0.5);
}

/* Draws all dots between two places; of a dashed line every other pair. */
static void raster_stroke(struct raster *self, const int64_t from[2], const int64_t to[2], uint32_t line, bool dashed,
                          bool mark)
{
    int64_t dx = to[0] - from[0], dy = to[1] - from[1];
    int64_t n = llabs(dx) > llabs(dy) ? llabs(dx) : llabs(dy);
    for (int64_t i = 0; i <= n; i++) {
        int64_t x = from[0] + (n ? (int64_t)llround((double)dx * (double)i / (double)n) : 0);
        int64_t y = from[1] + (n ? (int64_t)llround((double)dy * (double)i / (double)n) : 0);
        if (!dashed || (x / self->fine_x) % 2 == 0)
            raster_dot(self, x, y, line, mark);
    }
}

static void raster_draw(struct raster *self, const struct plot_line *line, uint32_t index, bool utf8)
{
    int64_t last[2] = {0, 0};
    bool begun = false;
    for (uint32_t i = 0; i < line->n; i++) {
        if (!plot_drawable(line->x[i]) || !plot_drawable(line->y[i])) {
            begun = false;
            continue;
        }
        int64_t at[2] = {raster_x(self, line->x[i]), raster_y(self, line->y[i])};
        raster_stroke(self, begun ? last : at, at, index, line->dashed, !utf8);
        if (line->points)
            raster_dot(self, at[0], at[1], index, true);
        memcpy(last, at, sizeof last);
        begun = true;
    }
}

static void raster_cell(struct text *out, uint8_t dots, uint8_t mark, bool utf8)
{
    if (mark && utf8)
        text_add(out, "%s", round_marks[(mark - 1) % PLOT_MAX_LINES]);
    else if (mark)
        text_add(out, "%c", plain_marks[(mark - 1) % PLOT_MAX_LINES]);
    else if (dots)
        text_add(out, "%c%c%c", 0xe2, 0xa0 | dots >> 6, 0x80 | (dots & 0x3f)); /* U+2800 + dots */
    else
        text_add(out, " ");
}

/* The label of the tick in this row; "" if the row has none. */
static const char *label_of(const struct raster *self, uint32_t row, char *out)
{
    for (uint32_t i = 0; i < self->y.ticks; i++) {
        double value = plot_tick(&self->y, i);
        if ((uint32_t)(raster_y(self, value) / self->fine_y) == row)
            return plot_label(&self->y, value, out);
    }
    return "";
}

static void raster_rows(struct text *out, const struct raster *self, uint32_t left, bool utf8)
{
    char label[FORMAT_SIZE];
    for (uint32_t row = 0; row < self->rows; row++) {
        const char *tick = label_of(self, row, label);
        struct text cells = {0};
        text_add(out, "%*s %s", (int)left, tick, utf8 ? tick[0] ? "┤" : "│" : tick[0] ? "+" : "|");
        uint32_t end = self->columns;
        while (end && !self->dots[row * self->columns + end - 1])
            end--;
        for (uint32_t c = 0; c < end; c++) {
            uint32_t cell = row * self->columns + c;
            raster_cell(&cells, self->dots[cell], self->marks[cell], utf8);
        }
        text_add(out, "%s\n", text_get(&cells));
        text_fini(&cells);
    }
}

/* Draws the x axis, its numbers, and its name behind the last number where there is room. */
static void raster_axis(struct text *out, const struct raster *self, const char *name, uint32_t left, bool utf8)
{
    char numbers[MAX_COLUMNS + 64], label[FORMAT_SIZE];
    bool ticks[MAX_COLUMNS] = {false};
    uint32_t used = 0, wide = left + 2 + self->columns;
    memset(numbers, ' ', sizeof numbers);
    for (uint32_t i = 0; i < self->x.ticks; i++) {
        double value = plot_tick(&self->x, i);
        uint32_t at = (uint32_t)(raster_x(self, value) / self->fine_x);
        uint32_t size = (uint32_t)strlen(plot_label(&self->x, value, label)), middle = left + 2 + at;
        uint32_t from = middle > size / 2 ? middle - size / 2 : 0;
        from = from + size > wide ? wide - size : from;
        ticks[at] = true;
        if (used && from < used + 2)
            continue;
        memcpy(numbers + from, label, size);
        used = from + size;
    }
    text_add(out, "%*s %s", (int)left, "", utf8 ? "└" : "+");
    for (uint32_t c = 0; c < self->columns; c++)
        text_add(out, "%s", utf8 ? ticks[c] ? "┬" : "─" : ticks[c] ? "+" : "-");
    text_add(out, "\n%.*s\n", (int)used, numbers);
    size_t size = name ? format_width(name) : 0;
    if (size && size < wide)
        text_add(out, "%*s%s\n", (int)(left + 2 + (self->columns > size ? (self->columns - size) / 2 : 0)), "", name);
}

/* Draws what is above the axes: the title, the name of the y axis, and the names of several lines. */
static uint32_t raster_top(struct text *out, const struct plot *plot, uint32_t columns, bool utf8)
{
    uint32_t rows = 0;
    struct text line = {0};
    if (plot->title && plot->title[0])
        text_add(&line, "%s", plot->title);
    if (plot->y_label && plot->y_label[0])
        text_add(&line, line.size ? " (%s)" : "%s", plot->y_label);
    if (line.size) {
        text_add(out, "%.*s\n", (int)format_cut(text_get(&line), columns), text_get(&line));
        rows++;
    }
    text_fini(&line);
    for (uint32_t i = 0; i < plot->n_lines && plot->n_lines > 1; i++) {
        const struct plot_line *one = &plot->lines[i];
        if (!utf8)
            text_add(&line, "%c %s   ", plain_marks[i], one->name ? one->name : "");
        else
            text_add(&line, "%s %s   ",
                     one->points   ? round_marks[i]
                     : one->dashed ? "╌╌"
                                   : "──",
                     one->name ? one->name : "");
    }
    if (line.size) {
        text_add(out, "%.*s\n", (int)format_cut(text_get(&line), columns), text_get(&line));
        rows++;
    }
    text_fini(&line);
    return rows;
}

static uint32_t widest_label(const struct plot_axis *axis)
{
    char label[FORMAT_SIZE];
    size_t most = 1;
    for (uint32_t i = 0; i < axis->ticks; i++) {
        size_t size = strlen(plot_label(axis, plot_tick(axis, i), label));
        most = size > most ? size : most;
    }
    return (uint32_t)most;
}

static uint32_t within(uint32_t value, uint32_t least, uint32_t most)
{
    return value < least ? least : value > most ? most : value;
}

void plot_text(struct text *out, const struct plot *plot, uint32_t columns, uint32_t rows, bool utf8)
{
    struct plot own = *plot;
    own.n_lines = own.n_lines < PLOT_MAX_LINES ? own.n_lines : PLOT_MAX_LINES;
    columns = within(columns, MIN_COLUMNS, MAX_COLUMNS);
    rows = within(rows, MIN_ROWS, MAX_ROWS);
    uint32_t around = raster_top(out, &own, columns, utf8) + 2 + (own.x_label && own.x_label[0] ? 1 : 0);
    struct raster raster = {.fine_x = utf8 ? 2 : 1, .fine_y = utf8 ? 4 : 1};
    raster.rows = rows > around + 2 ? rows - around : 2;
    if (!plot_axes(&own, within(columns / 16, 2, 20), within(raster.rows / 2, 1, 8), &raster.x, &raster.y)) {
        text_add(out, "no data\n");
        return;
    }
    uint32_t left = widest_label(&raster.y);
    raster.columns = columns > left + 2 + 4 ? columns - left - 2 : 4;
    raster.dots = need_alloc((size_t)raster.columns * raster.rows);
    raster.marks = need_alloc((size_t)raster.columns * raster.rows);
    for (uint32_t i = 0; i < own.n_lines; i++)
        raster_draw(&raster, &own.lines[i], i, utf8);
    raster_rows(out, &raster, left, utf8);
    raster_axis(out, &raster, own.x_label, left, utf8);
    free(raster.dots);
    free(raster.marks);
}
