import org.jetbrains.kotlin.gradle.dsl.JvmTarget

plugins {
    id("com.android.application")
    id("org.jetbrains.kotlin.android")
}

android {
    namespace = "com.example.readtext"
    compileSdk = 36

    defaultConfig {
        applicationId = "com.example.readtext"
        minSdk = 24
        targetSdk = 36
        versionCode = 1
        versionName = "1.0"
        ndk {
            abiFilters += listOf("arm64-v8a", "x86_64") // phones; emulators on desktops
        }
    }

    buildTypes {
        release {
            isMinifyEnabled = true
            proguardFiles(getDefaultProguardFile("proguard-android-optimize.txt"))
            // A sample: its debug key is good enough to try it.
            signingConfig = signingConfigs.getByName("debug")
        }
    }

    externalNativeBuild {
        cmake {
            path = file("src/main/cpp/CMakeLists.txt")
        }
    }

    // Stored as it is: what is compressed has no place in the app's file that could be opened.
    androidResources {
        noCompress += "aotm"
    }

    compileOptions {
        sourceCompatibility = JavaVersion.VERSION_17
        targetCompatibility = JavaVersion.VERSION_17
    }
}

kotlin {
    compilerOptions {
        jvmTarget.set(JvmTarget.JVM_17)
    }
}

// The models' compiler runs before anything reads what it makes.
val prepareModels by tasks.registering(Exec::class) {
    description = "Compiles the models and packages them with their runtime."
    val script = rootProject.file("prepare.py")
    inputs.file(script)
    outputs.dirs("src/main/assets", "src/main/cpp/package")
    commandLine(providers.gradleProperty("aot.python").get(), script.path)
}

tasks.named("preBuild") {
    dependsOn(prepareModels)
}
