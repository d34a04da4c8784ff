//! The comments of the `.proto` files, which the descriptors keep.

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, FileDescriptor};

pub static CONTRACTS: LazyLock<DescriptorPool> =
    LazyLock::new(|| DescriptorPool::decode(proto::DESCRIPTORS).unwrap());

/// The files that are ours, without what they import from Google.
pub fn files() -> impl Iterator<Item = FileDescriptor> {
    CONTRACTS.files().filter(|file| file.package_name().starts_with("windlass."))
}

/// The comment above what `path` leads to: a line per paragraph, empty when there is none.
pub fn comment(file: &FileDescriptor, path: &[i32]) -> String {
    let info = file.file_descriptor_proto().source_code_info.as_ref().unwrap();
    let location = info.location.iter().find(|location| location.path == path);
    let paragraphs = location.map_or("", |location| location.leading_comments()).split("\n\n");
    let paragraphs = paragraphs.map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
    paragraphs.collect::<Vec<_>>().join("\n")
}

/// All that is written in comments anywhere in the file.
pub fn everything(file: &FileDescriptor) -> String {
    let info = file.file_descriptor_proto().source_code_info.as_ref().unwrap();
    let mut text = String::new();
    for location in &info.location {
        text += location.leading_comments();
        text += location.trailing_comments();
        text += &location.leading_detached_comments.concat();
    }
    text
}
