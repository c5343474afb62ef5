# Text as JSON, into memory that grows; for the compiler alone, whose primitives share it.
cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    typedef struct { char *data; Py_ssize_t size, room; } json_text;

    static int json_grow(json_text *to, Py_ssize_t more) {
        Py_ssize_t room = 2 * to->room + more + 1024;
        char *data = (char *)PyMem_Realloc(to->data, (size_t)room);
        if (!data) return 0;
        to->data = data;
        to->room = room;
        return 1;
    }
    static inline int json_room(json_text *to, Py_ssize_t more) {
        return more <= to->room - to->size || json_grow(to, more);
    }
    static inline int json_put(json_text *to, const char *from, Py_ssize_t size) {
        if (!json_room(to, size)) return 0;
        memcpy(to->data + to->size, from, (size_t)size);
        to->size += size;
        return 1;
    }
    static inline void json_free(json_text *to) { PyMem_Free(to->data); }

    /* Return the length of the non-ASCII UTF-8 character at `from`, or 0 if there is none. */
    static inline int json_character(const unsigned char *from, Py_ssize_t left) {
        unsigned char first = from[0];
        int size = first < 0xC2 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF5 ? 4 : 0, at;
        if (!size || size > left) return 0;
        for (at = 1; at < size; at++)
            if ((from[at] & 0xC0) != 0x80) return 0;
        if (first == 0xE0 ? from[1] < 0xA0 : first == 0xED ? from[1] >= 0xA0
            : first == 0xF0 ? from[1] < 0x90 : first == 0xF4 && from[1] >= 0x90)
            return 0;
        return size;
    }
    /* Puts a text down in quotes, as Python's encoder does. False if it is not UTF-8, or if memory
       runs out. */
    static int json_string(json_text *to, const unsigned char *from, Py_ssize_t size) {
        static const char hex[] = "0123456789abcdef", short_for[] = "btn?fr";
        const unsigned char *end = from + size;
        char *at;
        if (!json_room(to, 6 * size + 2)) return 0;
        at = to->data + to->size;
        *at++ = '"';
        while (from < end) {
            unsigned char byte = *from;
            if (byte >= 0x80) {
                int width = json_character(from, end - from);
                if (!width) return 0;
                memcpy(at, from, (size_t)width);
                at += width;
                from += width;
                continue;
            }
            from++;
            if (byte >= 0x20 && byte != '"' && byte != '\\\\') {
                *at++ = (char)byte;
                continue;
            }
            *at++ = '\\\\';
            if (byte >= 0x20) {
                *at++ = (char)byte;
            } else if (byte >= 8 && byte <= 13 && byte != 11) {
                *at++ = short_for[byte - 8];
            } else {
                memcpy(at, "u00", 3);
                at[3] = hex[byte >> 4];
                at[4] = hex[byte & 15];
                at += 5;
            }
        }
        *at++ = '"';
        to->size = at - to->data;
        return 1;
    }
    """
    ctypedef struct json_text:
        char *data
        Py_ssize_t size
        Py_ssize_t room
    bint json_string(json_text *, const unsigned char *, Py_ssize_t) noexcept
    bint json_put(json_text *, const char *, Py_ssize_t) noexcept
    void json_free(json_text *) noexcept
