// Runs the Android sample's Kotlin and JNI on this machine's Java, as the app does on Android's.
//
//   FILE OFFSET LENGTH CHARACTERS PICTURE WIDTH HEIGHT CACHE
import com.example.readtext.Device
import com.example.readtext.Reading
import com.example.readtext.TextReader
import com.example.readtext.textOf
import java.io.File
import java.io.FileDescriptor
import java.io.FileInputStream
import java.nio.ByteBuffer
import java.nio.ByteOrder

fun descriptorOf(stream: FileInputStream): Int {
    val field = FileDescriptor::class.java.getDeclaredField("fd") // needs --add-opens
    field.isAccessible = true
    return field.getInt(stream.fd)
}

fun pictureOf(path: String): IntArray {
    val colours = ByteBuffer.wrap(File(path).readBytes()).order(ByteOrder.LITTLE_ENDIAN)
    return IntArray(colours.remaining() / 4) { colours.getInt() }
}

fun failing(what: String, action: () -> Unit) {
    try {
        action()
        println("$what: went well")
    } catch (error: Throwable) {
        println("$what: ${error.javaClass.simpleName}: ${error.message}")
    }
}

fun main(arguments: Array<String>) {
    val stream = FileInputStream(arguments[0])
    val fd = descriptorOf(stream)
    val (offset, length) = arguments.slice(1..2).map { it.toLong() }
    val characters = File(arguments[3]).readBytes()
    val picture = pictureOf(arguments[4])
    val (width, height) = arguments.slice(5..6).map { it.toInt() }
    val cache = arguments[7]
    val open = { device: Device -> TextReader(fd, offset, length, characters, device, 2, cache) }

    println("== a reading")
    var isShown = false
    Reading(open, { println(textOf(it)) }, { true }).run(Device.FIRST_THAT_FITS, picture, width, height)
    println("== one that is not wanted any more")
    Reading(open, { isShown = it.steadyMs != null }, { false }).run(Device.CPU, picture, width, height)
    println("steady: $isShown")
    println("== one whose GPU fails")
    val failingGpu = { device: Device ->
        if (device == Device.FIRST_THAT_FITS) throw java.io.IOException("device lost (device)")
        open(device)
    }
    Reading(failingGpu, { println(textOf(it)) }, { false })
        .run(Device.FIRST_THAT_FITS, picture, width, height)

    println("== errors")
    failing("no module") { TextReader(fd, 0, 0, characters, Device.CPU, 1, cache) }
    failing("characters") { TextReader(fd, offset, length, ByteArray(0), Device.CPU, 1, cache) }
    val reader = open(Device.CPU)
    failing("size") { reader.read(picture, width, height + 1) }
    println("picked ${reader.picked.device}")
    reader.close()
    reader.close()
    failing("closed") { reader.read(picture, width, height) }
}
