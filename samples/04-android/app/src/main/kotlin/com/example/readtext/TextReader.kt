package com.example.readtext

import java.io.Closeable

/** Where the models run. The order is that of `aot_device_kind_t`. */
enum class Device { FIRST_THAT_FITS, CPU, VULKAN }

/** A part of a picture, in pixels; bottom and right lie outside. */
data class Box(val top: Int, val left: Int, val bottom: Int, val right: Int)

/** A line of text: where it stands, what it says, and whether it stands on its head. */
data class TextLine(val box: Box, val text: String, val isTurned: Boolean)

/** What was picked: [skipped] says why no variant before this one was taken, or nothing. */
data class Picked(val device: String, val target: String, val code: String, val skipped: String)

/**
 * Reads the text of pictures, with the module at [offset] of an open file.
 *
 * The descriptor is only used by the constructor. Methods may be called from any thread, one at a
 * time: they wait for each other. Nothing here is of Android, so that it runs on any Java.
 *
 * @param characters what the recogniser's classes mean, one a line, in UTF-8
 * @param cacheFolder where what a GPU's driver made of the shaders is kept for the next time
 * @throws java.io.IOException the file holds no such module, or no variant of it runs here
 */
class TextReader(
    fd: Int,
    offset: Long,
    length: Long,
    characters: ByteArray,
    device: Device,
    threads: Int,
    cacheFolder: String,
) : Closeable {
    private var handle =
        NativeReader.open(fd, offset, length, characters, device.ordinal, threads, cacheFolder)

    val picked: Picked
        @Synchronized get() {
            val (device, target, code, skipped) = NativeReader.info(opened())
            return Picked(device, target, code, skipped)
        }

    /** The lines of a picture from top to bottom; [pixels] are colours row by row. */
    @Synchronized
    fun read(pixels: IntArray, width: Int, height: Int): List<TextLine> {
        val reader = opened()
        return List(NativeReader.read(reader, pixels, width, height)) { line(reader, it) }
    }

    @Synchronized
    override fun close() {
        if (handle != 0L) NativeReader.close(handle)
        handle = 0
    }

    private fun opened(): Long {
        check(handle != 0L) { "the reader is closed" }
        return handle
    }

    private fun line(reader: Long, index: Int): TextLine {
        val place = NativeReader.place(reader, index)
        val box = Box(place[0], place[1], place[2], place[3])
        val text = NativeReader.text(reader, index).toString(Charsets.UTF_8)
        return TextLine(box, text, isTurned = place[4] != 0)
    }
}

/** reader_jni.c. A handle is valid from [open] to [close], for one thread at a time. */
internal object NativeReader {
    init {
        System.loadLibrary("text_reader")
    }

    external fun open(
        fd: Int,
        offset: Long,
        length: Long,
        characters: ByteArray,
        device: Int,
        threads: Int,
        cacheFolder: String,
    ): Long

    external fun close(handle: Long)

    external fun info(handle: Long): Array<String>

    external fun read(handle: Long, pixels: IntArray, width: Int, height: Int): Int

    external fun place(handle: Long, index: Int): IntArray

    external fun text(handle: Long, index: Int): ByteArray
}
